"""Fuzzing that stays: seeded campaigns over files, graphs, gradients, training and plans, and coverage-guided reading.

    python -m tests.fuzz files --count 1000000 --seed 1 --jobs 2
    python -m tests.fuzz graphs --count 200000 --seed 1 --jobs 2
    python -m tests.fuzz gradients --count 20000
    python -m tests.fuzz second --count 20000
    python -m tests.fuzz training --count 20000
    python -m tests.fuzz saved --count 20000
    python -m tests.fuzz adapters --count 20000
    python -m tests.fuzz storage --count 20000
    python -m tests.fuzz sessions --count 20000
    python -m tests.fuzz edits --count 20000
    python -m tests.fuzz plans --count 1000000
    python -m tests.fuzz coverage --minutes 60 --jobs 2 [--keep]
    python -m tests.fuzz files --seed 1 --case 4711 --reproducer bug.onnx
    python -m tests.fuzz graphs --seed 1 --case 4711 --reproducer tests/test_bug.py

Each prints its progress, writes a report as JSON and ends with status 1 when it has findings. A case is a number: the
target and the seed make the same input from it on every machine, so a finding needs no more than its number.

Who calls whom::

    __main__   reads the command line
      campaign   forks workers, watches them for death, hangs and memory, collects findings -> Report
        files      case -> mutated ONNX model -> load, compile, run -> outcome          (corpus, mutations, referee)
        graphs     case -> random graph -> devices and options against float64 -> outcome  (making, bodies, comparing)
        gradients  case -> the same graph -> its vjp against differences -> outcome
        second     case -> that vjp -> its own vjp against differences -> outcome        (gradients)
        dtypes     case -> the same graph and its vjp, in float64 or 16 bits -> as graphs -> outcome  (graphs)
        integers   case -> random graph of integers beside NumPy's arrays -> devices and options -> outcome
        training   case -> the same graph's inputs as parameters -> what a step makes of them -> outcome
        saved      case -> the same graph as a file -> read again, and by onnxruntime -> outcome  (referee)
        adapters   case -> that or layers with adapters -> merged, saved, differentiated -> outcome  (layered, referee)
        storage    case -> as training, with 16 bits -> masters and parameters after a step -> outcome  (training)
        sessions   case -> the same graph -> options of sessions, state, reload, threads -> outcome  (naming)
        edits      case -> the same graph, edited -> run, saved and read again -> outcome
        plans      case -> random lowered program -> planner, checker, bytes -> outcome  (programs, simulating)
      minimizing   a failing input and a predicate -> a smaller one that still fails  (writing: as a test)
      coverage     atheris over the wire format, the reader and runs, in processes of its own  (files, mutations)

A target is a function from ``(seed, case)`` to an ``Outcome``: a word that is counted (``ran``, ``refused``, ...) and
the findings. What a finding is stands in ``findings.Finding``.
"""
