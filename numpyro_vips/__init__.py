"""Private variational inference for NumPyro models.

See `PrivateVI` for fitting, `VIPS` and `DPVI` for each engine's settings,
`PrivacyBudget` for the ledger, `private` for marking whose records are protected, and
`Schema` for encoding tables by public facts.
"""

from numpyro_vips import accounting
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import (
    BudgetExceededError,
    NotConjugateError,
    UnsafeModelError,
    UnusablePosteriorError,
)
from numpyro_vips.fitting.reducers.parties import SimulatedParties
from numpyro_vips.fitting.reducers.processes import Processes
from numpyro_vips.handlers import private
from numpyro_vips.inference import Plan, PrivateVI
from numpyro_vips.polya_gamma import PolyaGamma
from numpyro_vips.privacy.budget import PrivacyBudget
from numpyro_vips.privacy.sampling import FullBatch, Poisson, WithoutReplacement
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import PrivateVIResult, load
from numpyro_vips.rows.array_rows import ArrayRows
from numpyro_vips.rows.arrow_rows import ArrowRows, ParquetRows
from numpyro_vips.rows.record_rows import RecordRows
from numpyro_vips.rows.source import RandomAccess, RowSource, columns
from numpyro_vips.schema.columns import (
    Binary,
    Bounded,
    Categorical,
    Intercept,
    LogBounded,
)
from numpyro_vips.schema.design import Design
from numpyro_vips.schema.moments import PrivateMoments
from numpyro_vips.schema.schema import Schema
from numpyro_vips.vips.settings import VIPS

__version__ = "0.1.0"

__all__ = [
    "DPVI",
    "VIPS",
    "ArrayRows",
    "ArrowRows",
    "Binary",
    "Bounded",
    "BudgetExceededError",
    "Categorical",
    "Design",
    "FullBatch",
    "Intercept",
    "LogBounded",
    "NotConjugateError",
    "ParquetRows",
    "Plan",
    "Poisson",
    "PolyaGamma",
    "PrivacyBudget",
    "PrivacyStatement",
    "PrivateMoments",
    "PrivateVI",
    "PrivateVIResult",
    "Processes",
    "RandomAccess",
    "RecordRows",
    "RowSource",
    "Schema",
    "SimulatedParties",
    "UnsafeModelError",
    "UnusablePosteriorError",
    "WithoutReplacement",
    "accounting",
    "columns",
    "load",
    "private",
]
