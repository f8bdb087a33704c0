"""The units of views: those of every sentence of the engine (`jaxtorch_kernel/base/units.py`)."""

from jaxtorch.base.units import SCALES as SCALES
from jaxtorch.base.units import Unit as Unit
from jaxtorch.base.units import amount as amount
from jaxtorch.base.units import counted as counted
from jaxtorch.base.units import duration as duration
from jaxtorch.base.units import share as share
from jaxtorch.base.units import size as size
from jaxtorch.base.units import written as written
