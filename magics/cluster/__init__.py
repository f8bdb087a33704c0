"""`%%jax cluster`: a cell in several processes, which ipyparallel starts, connects and signals.

    this session                                      each process
     |  processes.start      ipyparallel ->            an IPython shell
     |  engine.join          apply ->                  its rank; jaxtorch.distributed; the magics; a watch on
     |                                                 this session, so that none outlives it
     |  running.run          engine.run, one per cell -> the cell, compiled as a cell of the notebook is
     |  <- printed and displayed, ten times a second
     |  SIGINT ->            Ctrl-C here interrupts them all

`processes.py` starts and ends them, `running.py` runs a cell, and `engine.py` has the code that runs in the processes.
"""
