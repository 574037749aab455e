"""What a node encoder decides on annotated questions: scores, metrics with intervals, flat selectors beside it."""
