"""The critic's model: states of the loop with their right verdicts, and a small model fine-tuned on them."""
