"""Recording never changes a training: kinds of trainings, with recording and without this package.

Modules
-------
trainings
    The kinds of trainings, each a function, with public functions of PyTorch and Horovod only.
ranks
    Runs a training in cells of a cluster, and in plain processes without this package.
__main__
    Prints a table of all kinds.
"""
