"""The benchmark: cells, contenders, rounds and reports.

`scaling` is the model of docs/contributing/scaling.md. Each module of `studies` answers one
question.
"""
