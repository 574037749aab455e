"""The page that shows a trace: one HTML file that asks nothing of a network."""
