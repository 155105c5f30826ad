"""Training (floor 4): model, stores and an ordering in; committed rows and a line of metrics an epoch out."""
