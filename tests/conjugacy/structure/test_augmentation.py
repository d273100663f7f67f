"""What log densities are told of auxiliary variables, and what comes of them."""

import numpy as np
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Dense, Label, OneHot, Origin, Term
from numpyro_vips.conjugacy.structure.augmentation import (
    Augmentation,
    augmented,
    auxiliary_weight,
)

RATES = {"a": np.array([0.5, 2.0, 3.0]), "b": np.array([1.5, 1.0, 0.25])}
COUNTS = np.array([4.0, 0.0, 7.0])


def of_sum(weight: Form) -> tuple[Form, tuple]:
    return augmented(
        lambda augment: augment.log_sum(
            forms.latent("a", (3,)) + forms.latent("b", (3,)), weight
        ),
        "y",
        "local",
        {},
    )


def test_the_bound_of_a_logarithm_of_a_sum_is_the_term_that_is_chosen() -> None:
    form, ((latent, places),) = of_sum(forms.constant(COUNTS))
    assert (latent.name, latent.role, latent.shape) == ("y:allocation", "local", (3,))
    assert latent.weight is not None and latent.states is not None
    np.testing.assert_array_equal(evaluate(latent.weight, {}), COUNTS)
    assert places is None
    chosen = np.array([0, 1, 1])
    expected = COUNTS * np.log(np.choose(chosen, [RATES["a"], RATES["b"]]))
    values = RATES | {latent.name: chosen}
    found = evaluate(form, values, {latent.name: latent.states})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_bound_meets_the_logarithm_at_the_best_probabilities() -> None:
    form, ((latent, _),) = of_sum(forms.constant(COUNTS))
    by_state = np.stack(
        [
            evaluate(
                form,
                RATES | {latent.name: np.full(3, state)},
                {latent.name: latent.states},
            )
            for state in (0, 1)
        ],
        -1,
    )
    r = np.stack([RATES["a"], RATES["b"]], -1)
    r = r / r.sum(-1, keepdims=True)
    entropy = -COUNTS * np.sum(r * np.log(r), -1)
    expected = COUNTS * np.log(RATES["a"] + RATES["b"])
    np.testing.assert_allclose(np.sum(r * by_state, -1) + entropy, expected, rtol=1e-6)


def test_what_is_asked_for_twice_has_two_names() -> None:
    def density(augment: Augmentation) -> Form:
        x = forms.latent("a", (3,), signed=True)
        one = forms.number(1.0)
        return augment.logistic(x, one) + augment.logistic(2.0 * x, one)

    _, auxiliaries = augmented(density, "y", "global", {})
    names = [latent.name for latent, _ in auxiliaries]
    assert names == ["y:polya_gamma", "y:polya_gamma_2"]
    again = augmented(density, "y", "global", {})[1]
    assert [latent.name for latent, _ in again] == names


def test_a_sum_that_only_a_rows_entries_weigh_has_variables_only_there() -> None:
    indices = np.array([2, 0])
    counts = np.array([3.0, 5.0])
    entry, target = Label(2), Label(3)
    one_hot = OneHot(indices, (entry,), target, origin=Origin("counts"))
    values = Dense(counts, (entry,))
    weight = Form((target,), (Term(1.0, (values, one_hot), frozenset([entry])),))
    form, ((latent, places),) = of_sum(weight)
    assert latent.shape == (2,)
    assert places is not None and (places.leading, places.axis) == ((), 0)
    chosen = np.array([1, 0])
    at_entries = np.log(np.choose(chosen, [RATES["a"][indices], RATES["b"][indices]]))
    expected = np.zeros(3)
    expected[indices] = counts * at_entries
    found = evaluate(form, RATES | {latent.name: chosen}, {latent.name: latent.states})
    np.testing.assert_allclose(found, expected, rtol=1e-6)

    # A mask of all elements is one of the entries.
    assert latent.weight is not None
    masked = auxiliary_weight(
        latent.weight, [forms.constant(np.array([1.0, 1.0, 0.0]))], 1, places
    )
    np.testing.assert_array_equal(evaluate(masked, {}), [0.0, 5.0])
