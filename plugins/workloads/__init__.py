"""Ten standard scenarios of LLM serving traffic, and the metrics by which runs are compared."""

from .scenario import Scenario as Scenario
from .scenario import Slo as Slo
from .scenario import scale_arrivals as scale_arrivals
from .scenario import scenario as scenario
