"""How long a step takes, as a function of what it computes: forms, fits, files with coefficients, calibration."""

from .features import Features as Features
from .features import features_of as features_of
from .files import StepTimeFile as StepTimeFile
from .files import load as load
from .forms import StepForm as StepForm
from .policy_cost import PolicyCost as PolicyCost
