"""Discrete distributions, as NumPyro has them but for the result of `Categorical`.

NumPyro gives that no type, and Pyright infers one that may be None.
"""

from jax.typing import ArrayLike
from numpyro._typing import NumLike
from numpyro.distributions.distribution import Distribution

class BernoulliProbs(Distribution):
    def __init__(
        self, probs: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

class BernoulliLogits(Distribution):
    def __init__(
        self, logits: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

def Bernoulli(
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    *,
    validate_args: bool | None = None,
) -> BernoulliProbs | BernoulliLogits: ...

class BinomialProbs(Distribution):
    def __init__(
        self,
        probs: ArrayLike,
        total_count: ArrayLike = 1,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class BinomialLogits(Distribution):
    def __init__(
        self,
        logits: ArrayLike,
        total_count: ArrayLike = 1,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

def Binomial(
    total_count: ArrayLike = 1,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    *,
    validate_args: bool | None = None,
) -> BinomialProbs | BinomialLogits: ...

class CategoricalProbs(Distribution):
    def __init__(
        self, probs: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

class CategoricalLogits(Distribution):
    def __init__(
        self, logits: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

def Categorical(
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    *,
    validate_args: bool | None = None,
) -> CategoricalProbs | CategoricalLogits: ...

class DiscreteUniform(Distribution):
    def __init__(
        self, low: NumLike = 0, high: NumLike = 1, *, validate_args: bool | None = None
    ) -> None: ...

class OrderedLogistic(CategoricalProbs):
    def __init__(
        self,
        predictor: ArrayLike,
        cutpoints: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class MultinomialProbs(Distribution):
    def __init__(
        self,
        probs: ArrayLike,
        total_count: ArrayLike = 1,
        *,
        total_count_max: int | None = None,
        validate_args: bool | None = None,
    ) -> None: ...

class MultinomialLogits(Distribution):
    def __init__(
        self,
        logits: ArrayLike,
        total_count: ArrayLike = 1,
        *,
        total_count_max: int | None = None,
        validate_args: bool | None = None,
    ) -> None: ...

def Multinomial(
    total_count: ArrayLike = 1,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    *,
    total_count_max: int | None = None,
    validate_args: bool | None = None,
) -> MultinomialProbs | MultinomialLogits: ...

class Poisson(Distribution):
    def __init__(
        self,
        rate: ArrayLike,
        *,
        is_sparse: bool = False,
        validate_args: bool | None = None,
    ) -> None: ...

class ZeroInflatedProbs(Distribution):
    def __init__(
        self,
        base_dist: Distribution,
        gate: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class ZeroInflatedLogits(ZeroInflatedProbs):
    def __init__(
        self,
        base_dist: Distribution,
        gate_logits: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

def ZeroInflatedDistribution(
    base_dist: Distribution,
    *,
    gate: ArrayLike | None = None,
    gate_logits: ArrayLike | None = None,
    validate_args: bool | None = None,
) -> ZeroInflatedProbs | ZeroInflatedLogits: ...

class ZeroInflatedPoisson(ZeroInflatedProbs):
    def __init__(
        self,
        gate: ArrayLike,
        rate: ArrayLike = 1.0,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class HurdleProbs(Distribution):
    def __init__(
        self,
        base_dist: Distribution,
        gate: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class HurdleLogits(HurdleProbs):
    def __init__(
        self,
        base_dist: Distribution,
        gate_logits: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

def HurdleDistribution(
    base_dist: Distribution,
    *,
    gate: ArrayLike | None = None,
    gate_logits: ArrayLike | None = None,
    validate_args: bool | None = None,
) -> HurdleProbs | HurdleLogits: ...

class HurdlePoisson(HurdleProbs):
    def __init__(
        self,
        gate: ArrayLike,
        rate: ArrayLike = 1.0,
        *,
        validate_args: bool | None = None,
    ) -> None: ...

class GeometricProbs(Distribution):
    def __init__(
        self, probs: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

class GeometricLogits(Distribution):
    def __init__(
        self, logits: ArrayLike, *, validate_args: bool | None = None
    ) -> None: ...

def Geometric(
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    *,
    validate_args: bool | None = None,
) -> GeometricProbs | GeometricLogits: ...
