"""Contract tests that run an installed engine's own classes in its own interpreter: no GPU, model or RDMA.

The control side uses the standard library only, so that it can run on the node beside the engine. What runs
inside the engine's interpreter is in `engine/`.
"""

from pdguard.exercise.catalogue import CONTRACTS, Contract, select
from pdguard.exercise.model import ContractResult, Engine, ExerciseReport, PairReport
from pdguard.exercise.pair import run_pair
from pdguard.exercise.process import ExerciseError
from pdguard.exercise.runner import run_exercise

__all__ = [
    "CONTRACTS",
    "Contract",
    "ContractResult",
    "Engine",
    "ExerciseError",
    "ExerciseReport",
    "PairReport",
    "run_exercise",
    "run_pair",
    "select",
]
