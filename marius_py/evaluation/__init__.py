"""How good a model is (floor 4): a model, a row reader and edges in; figures of their ranks out.

`ranking` counts which candidates score better; the rest makes metrics and files of the counts.
"""
