"""Put one of the 52 faults of the taxonomy into a live encoder or decoder, and take it out again.

`with inject(model, Fault("FSW", 2.0), optimizer=optimizer): train(...)`; `verify` checks that exactly what was asked
has changed, `python -m features.inject` proves every operator on every family.
"""

from features.inject.applicability import applicable
from features.inject.fault import Fault, inject
from features.inject.locate import FAMILIES, InjectionError, NoEffectError

__all__ = ["FAMILIES", "Fault", "InjectionError", "NoEffectError", "applicable", "inject"]
