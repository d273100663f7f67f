"""That annotations of arrays are checked at all while tests run, and their dtypes."""

import ast
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import numpyro_vips
from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.dpvi.gradients import row_fingerprints
from numpyro_vips.dpvi.guides import unconstrained
from numpyro_vips.jax_tools import row_sums
from numpyro_vips.privacy import batch_selection, gaussian_mechanism
from numpyro_vips.vips.compile.certificate import rows_apart
from numpyro_vips.vips.e_step import evidence_bound
from numpyro_vips.vips.row_sums import bounded_sum


def test_indices_are_whole_numbers():
    with pytest.raises(jaxtyping.TypeCheckError, match="indices"):
        batch_selection.split_batch(np.array([0.5, 1.5]), 2)


def test_sums_are_arrays_of_floats():
    mechanism = gaussian_mechanism.GaussianMechanism(
        blocks=(gaussian_mechanism.Block(name="x", shape=(2,)),),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        relation="add_or_remove",
    )
    with pytest.raises(jaxtyping.TypeCheckError, match="sums"):
        mechanism.add_noise({"x": np.array([True, False])}, np.random.default_rng(0))


def test_a_row_has_one_fingerprint():
    with pytest.raises(jaxtyping.TypeCheckError, match="numbers"):
        row_fingerprints._mixed(jnp.ones(3))


def test_flat_vectors_have_an_axis():
    with pytest.raises(jaxtyping.TypeCheckError, match="vectors"):
        unconstrained.UnconstrainedSpace(sites=()).split(jnp.ones(()))


def test_rows_are_as_many_as_the_mask_says():
    with pytest.raises(jaxtyping.TypeCheckError, match="mask"):
        bounded_sum.clipping_weights(jnp.ones(3), jnp.ones(2, bool), 1.0)


def test_arrays_in_a_mapping_are_looked_at():
    with pytest.raises(jaxtyping.TypeCheckError, match="latents"):
        rows_apart(None, {"w": [1.0]}, 1)  # pyright: ignore[reportArgumentType]


def test_whatever_a_row_holds_is_looked_at():
    row = {"x": {"indices": "none"}}
    with pytest.raises(jaxtyping.TypeCheckError, match="row"):
        evidence_bound.row_bound_at(None, {}, row, {})  # pyright: ignore[reportArgumentType]


def test_two_precisions_do_not_meet_unnoticed():
    with jax.enable_x64(True):
        norms = jnp.ones(3, jnp.float64)
        with pytest.raises(ValueError, match="implicit dtype promotion"):
            row_sums.clipping_factor(norms, jnp.ones((), jnp.float32))
        with pytest.raises(ValueError, match="implicit dtype promotion"):
            positive_matrices.times(jnp.eye(3, dtype=jnp.float32), norms)
        # The promotion is that of the caller again.
        assert (norms + jnp.ones(3, jnp.float32)).dtype == jnp.float64


CHECKED_FOLDERS = ("vips", "dpvi", "privacy", "conjugacy/families")
_OF_SHAPE = re.compile(r"\b\w+\[(Array|np\.ndarray|jax\.Array)( \| [\w.]+)*, '[^']*'\]")


@pytest.mark.parametrize("folder", CHECKED_FOLDERS)
def test_functions_say_the_shapes_of_their_arrays(folder):
    package = Path(numpyro_vips.__file__).parent
    bare = []
    for file in (package / folder).rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            arguments = [*function.args.args, *function.args.kwonlyargs]
            annotations = [argument.annotation for argument in arguments]
            for annotation in filter(None, [*annotations, function.returns]):
                rest = _OF_SHAPE.sub("", ast.unparse(annotation))
                if re.search(r"\bArray\b|\bndarray\b", rest):
                    bare.append(f"{file.relative_to(package)}: {function.name}")
    assert bare == []
