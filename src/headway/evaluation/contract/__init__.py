"""The contract of models/base.py, checked on any model: `headway.check_contract`."""

from headway.evaluation.contract.check import check_contract
from headway.evaluation.contract.properties import PROPERTIES
from headway.evaluation.contract.report import ContractReport, PropertyResult

__all__ = ["PROPERTIES", "ContractReport", "PropertyResult", "check_contract"]
