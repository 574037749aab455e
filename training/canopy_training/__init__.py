"""Fine-tuning of the node encoder on gold evidence, and its evaluation."""
