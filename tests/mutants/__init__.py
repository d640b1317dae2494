"""Mutants: faults that a person could make, put into the code one by one to see which tests fail.

`python -m mutants` runs them; `make mutants` is the same. A mutant that no test kills is a promise
that nothing checks. A test that kills no mutant of its own may be one too many.
"""
