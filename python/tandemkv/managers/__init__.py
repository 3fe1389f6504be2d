"""The managers: request ids, steps, pools and views over one ledger for target and draft."""

from __future__ import annotations

from tandemkv.managers.admission import Refusal
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.build import build_managers
from tandemkv.managers.managers import Managers
from tandemkv.managers.pools import Pool
from tandemkv.managers.probe import Fits, Probe
from tandemkv.managers.retention import Retention
from tandemkv.managers.stats import ManagerStats
from tandemkv.managers.views import RoleView

__all__ = [
    "Batch",
    "Fits",
    "ManagerStats",
    "Managers",
    "Pool",
    "Probe",
    "Refusal",
    "RequestIds",
    "Retention",
    "RoleView",
    "build_managers",
]
