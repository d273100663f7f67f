"""Models that others published, fitted with and without privacy by default settings.

    python benchmarks/foreign.py reference [names ...]
    python benchmarks/foreign.py fit [names ...]
    python benchmarks/foreign.py table

`reference` runs NUTS and keeps the posterior's means and standard deviations in
`benchmarks/records/foreign_reference.json`. Models with discrete latents need funsor
for it. `fit` fits what has no record yet, keeps records in
`benchmarks/records/foreign.json` and, like `table`, writes the table of
`docs/foreign_models.md`. All can be stopped and go on where they were; `--again`
replaces the records of the models that are named.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from _finished import Finished
from _marks import put_between_marks
from foreign_models import GALLERY, Arguments, Foreign
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, init_to_uniform, init_to_value

import numpyro_vips as nv

EPSILON, DELTA = 1.0, 1e-5
RECORDS = Path(__file__).parent / "records" / "foreign.json"
REFERENCES = Path(__file__).parent / "records" / "foreign_reference.json"
PAGE = Path(__file__).parents[1] / "docs" / "foreign_models.md"
BY_NAME = {foreign.name: foreign for foreign in GALLERY}


# --- references -----------------------------------------------------------------------


def global_sites(foreign: Foreign, arguments: Arguments) -> list[str]:
    """The latents outside the unit plate, which a fit releases."""
    # Priors may be improper, so no latent is drawn from its own.
    found = handlers.substitute(
        handlers.seed(foreign.model, 0), substitute_fn=init_to_uniform
    )
    sites = handlers.trace(found).get_trace(**arguments)
    return [
        name
        for name, site in sites.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and foreign.unit not in {frame.name for frame in site["cond_indep_stack"]}
    ]


def rounded(values: np.ndarray) -> Any:
    """Nested lists of numbers with five significant digits."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.5g}")
    return [rounded(value) for value in values]


def reference(foreign: Foreign) -> dict[str, Any]:
    """Means and standard deviations under NUTS, and the largest R̂."""
    numpyro.enable_x64()
    arguments, started = foreign.data(), time.process_time()
    start = init_to_uniform
    if foreign.truth is not None:
        places = {
            name: jnp.asarray(value, float) for name, value in foreign.truth.items()
        }
        start = init_to_value(values=places)
    mcmc = MCMC(
        NUTS(
            foreign.model, init_strategy=start, target_accept_prob=0.9, max_tree_depth=8
        ),
        num_warmup=500,
        num_samples=1000,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), **arguments)
    draws = mcmc.get_samples()
    kept = {
        name: np.asarray(draws[name], float)
        for name in global_sites(foreign, arguments)
        if name in draws
    }
    compared = foreign.to_compare(kept)
    r_hat = 1.0
    for values in compared.values():
        chains = np.reshape(np.asarray(values), (2, -1, *np.shape(values)[1:]))
        split = numpyro.diagnostics.split_gelman_rubin(chains)
        r_hat = max(r_hat, float(np.nanmax(split)))
    return {
        "sites": {
            name: {
                "mean": rounded(np.mean(values, 0)),
                "sd": rounded(np.std(values, 0)),
            }
            for name, values in compared.items()
        },
        "r_hat": rounded(np.array(r_hat)),
        "seconds": rounded(np.array(time.process_time() - started)),
    }


# --- fits -----------------------------------------------------------------------------


def compare(draws: dict[str, np.ndarray], sites: dict[str, Any]) -> dict[str, float]:
    """Errors in reference sds, ratios of sds, and which 90 % intervals hold."""
    errors, ratios, inside = [], [], []
    for name, summary in sites.items():
        mean, sd = np.ravel(summary["mean"]), np.ravel(summary["sd"])
        values = np.reshape(draws[name], (len(draws[name]), -1))
        free = sd > 1e-6 * np.maximum(np.abs(mean), 1e-6)  # A correlation's 1 is not.
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        errors += list((np.abs(values.mean(0) - mean)[free]) / sd[free])
        ratios += list(values.std(0)[free] / sd[free])
        inside += list(((low <= mean) & (mean <= high))[free])
    return {
        "error": float(np.max(errors)),
        "sd_ratio": float(np.median(ratios)),
        "inside": float(np.mean(inside)),
    }


def prior_medians(foreign: Foreign, arguments: Arguments) -> dict[str, np.ndarray]:
    """Medians of what is compared, under the prior; none where it cannot be drawn."""
    names = global_sites(foreign, arguments)
    try:
        draw = numpyro.infer.Predictive(
            foreign.model, num_samples=500, return_sites=names
        )
        draws = draw(jax.random.key(2), **arguments)
        compared = foreign.to_compare({k: np.asarray(draws[k], float) for k in names})
    except Exception:  # Improper, or latents that are summed out.
        return {}
    return {name: np.median(values, axis=0) for name, values in compared.items()}


def half_way(
    means: dict[str, np.ndarray], prior: dict[str, np.ndarray], sites: dict[str, Any]
) -> float | None:
    """The share of means that are half way from the prior's to the reference or more.

    Of entries that are more than two reference sds away from the prior's; None where
    there are none, or the prior is not known.
    """
    found: list[bool] = []
    for name in sites.keys() & prior.keys():
        mean, sd = (np.ravel(sites[name][key]) for key in ("mean", "sd"))
        away = np.abs(np.ravel(prior[name]) - mean)
        left = np.abs(np.ravel(means[name]) - mean)
        found += list((left <= 0.5 * away)[away > 2.0 * sd])
    return float(np.mean(found)) if found else None


def fit(
    foreign: Foreign, arguments: Arguments, budget: nv.PrivacyBudget, sites: Any
) -> dict[str, Any]:
    """One fit by default settings: what it found, or why it found nothing."""
    model = nv.private(foreign.model, unit=foreign.unit, public=foreign.public)
    started = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            vi.explain(**arguments)
            explained = time.process_time() - started
            result = vi.run(jax.random.key(0), **arguments)
            seconds = time.process_time() - started
            draws = result.sample_posterior(jax.random.key(1), sample_shape=(2000,))
            found = foreign.to_compare({k: np.asarray(draws[k], float) for k in draws})
            record = {"engine": result.engine, **compare(dict(found), sites)}
            record["explain_seconds"] = round(explained, 2)
            if budget.is_private:
                means = {name: np.mean(values, 0) for name, values in found.items()}
                prior = prior_medians(foreign, arguments)
                record["half_way"] = half_way(means, prior, sites)
            record["bounds"] = sorted(
                set(result.diagnostics.get("bounds", {}).values())
            )
        except Exception as error:  # A refusal, or a fault of ours: both are shown.
            seconds = time.process_time() - started
            record = {"refused": f"{type(error).__name__}: {error}"}
    texts = [str(warning.message) for warning in caught]
    return {**record, "warnings": texts, "seconds": round(seconds, 2)}


def measure(foreign: Foreign, sites: Any) -> dict[str, Any]:
    """Fits without and with privacy, and the number of protected rows."""
    arguments = foreign.data()
    lengths = [len(arguments[name]) for name in arguments if name not in foreign.public]
    return {
        "rows": max(lengths),
        "plain": fit(foreign, arguments, nv.PrivacyBudget(math.inf), sites),
        "private": fit(foreign, arguments, nv.PrivacyBudget(EPSILON, DELTA), sites),
    }


# --- the table ------------------------------------------------------------------------

HEAD = """\
| model | source | rows | engine | error | sd ratio | private error \
| in 90 % | private sd ratio | warns | seconds |
|---|---|---|---|---|---|---|---|---|---|---|"""
# Errors and ratios beyond say no more than that they are large.
MOST_SHOWN = 1000.0


def line(foreign: Foreign, record: dict[str, Any], r_hat: float) -> str:
    """A model's line of the table."""
    plain, private = record["plain"], record["private"]

    def shown(part: dict[str, Any], key: str, percent: bool = False) -> str:
        if key not in part:
            return "refused"
        if percent:
            return f"{100 * part[key]:.0f} %"
        is_large = part[key] > MOST_SHOWN
        return f"> {MOST_SHOWN:,.0f}" if is_large else f"{part[key]:.2f}"

    warned = [
        name
        for name, part in (("plain", plain), ("private", private))
        if part["warnings"]
    ]
    engine = private.get("engine") or plain.get("engine") or "none"
    bounds = private.get("bounds") or []
    if private.get("engine") in (None, plain.get("engine")):
        bounds = bounds or plain.get("bounds") or []
    if bounds:
        engine += f", {', '.join(bounds)} bound"
    name = f"`{foreign.name}`" + (" *" if r_hat > 1.05 else "")
    rows = f"{record['rows']:,}"
    if foreign.rows != "simulated":
        rows += f", {foreign.rows} ({foreign.licence})"
    seconds = f"{private['seconds']:.1f}"
    cells = [name, foreign.source, rows, engine]
    cells += [shown(plain, "error"), shown(plain, "sd_ratio")]
    cells += [shown(private, "error"), shown(private, "inside", percent=True)]
    cells += [shown(private, "sd_ratio"), ", ".join(warned), seconds]
    return "| " + " | ".join(cells) + " |"


def table(records: dict[str, Any], references: dict[str, Any]) -> str:
    """The table of all records, the counts, and what was refused and why."""
    lines = [HEAD]
    for name, record in records.items():
        lines.append(line(BY_NAME[name], record, references[name]["r_hat"]))
    plain = [record["plain"] for record in records.values()]
    private = [record["private"] for record in records.values()]
    errors = np.array([part["error"] for part in plain if "error" in part])
    silent = [
        part
        for part in plain
        if part.get("error", 0) > 1 and not part["warnings"] and not part.get("bounds")
    ]
    inside = [part["inside"] for part in private if "inside" in part]
    reasons = [
        f"- `{name}`, {kind}: {' '.join(record[kind]['refused'].split())}"
        for name, record in records.items()
        for kind in ("plain", "private")
        if "refused" in record[kind]
    ]
    counts = (
        f"{len(inside)} of {len(records)} models have a private posterior. Without "
        f"noise the means of {np.sum(errors < 0.3)} of {len(errors)} "
        f"({100 * np.mean(errors < 0.3):.0f} %) are within 0.3 reference sds "
        f"and of {np.sum(errors < 1)} within 1. Models with a larger error that "
        f"neither warn nor name a bound: {len(silent)}. "
        f"Private 90 % intervals hold {100 * np.mean(inside):.0f} % of the reference "
        "means in the mean over models. Models of the gallery without a record: "
        f"{len(GALLERY) - len(records)}."
    )
    counts += _on_progress(records) + _on_explain(private)
    found = "\n".join(lines) + "\n\n" + counts
    if reasons:
        found += "\n\nRefused, with the message:\n\n" + "\n".join(reasons)
    return found


# Rows from which a private posterior is asked to leave its prior.
_MANY_ROWS = 500


def _on_progress(records: dict[str, Any]) -> str:
    """How many private posteriors leave their priors; records may not know."""
    shares = [
        record["private"]["half_way"]
        for record in records.values()
        if record["rows"] >= _MANY_ROWS
        and record["private"].get("half_way") is not None
    ]
    if not shares:
        return ""
    return (
        f" In {len(shares)} models with {_MANY_ROWS} rows or more, where the "
        "reference is more than two of its sds away from the prior's median, "
        f"{100 * np.mean(shares):.0f} % of the private means are at least half way "
        "from the one to the other."
    )


def _on_explain(private: list[dict[str, Any]]) -> str:
    """Seconds of `explain`; records may not know."""
    seconds = [p["explain_seconds"] for p in private if "explain_seconds" in p]
    if not seconds:
        return ""
    return (
        f" `explain` takes {np.median(seconds):.1f} s of the processor in the median "
        f"of {len(seconds)} models, {np.max(seconds):.1f} s at most."
    )


def finished(path: Path, names: list[str], again: bool) -> Finished:
    """Records in a file; with `again` without those of the named models."""
    if again and path.exists():
        records = json.loads(path.read_text())
        kept = {name: records[name] for name in records if name not in names}
        path.write_text(json.dumps(kept, indent=1) + "\n")
    return Finished(path)


def read(path: Path) -> dict[str, Any]:
    """The records of models that are in the gallery, in its order."""
    records = json.loads(path.read_text()) if path.exists() else {}
    return {name: records[name] for name in BY_NAME if name in records}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["reference", "fit", "table"])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="replaces records")
    args = parser.parse_intermixed_args()
    unknown = set(args.names) - set(BY_NAME)
    if unknown:
        parser.error(f"there is no model {sorted(unknown)}; there are {list(BY_NAME)}")
    chosen = [BY_NAME[name] for name in args.names] or list(GALLERY)
    names = [foreign.name for foreign in chosen]
    references = read(REFERENCES)
    if args.what == "reference":
        kept = finished(REFERENCES, names, args.again)
        for foreign in chosen:
            found = kept.get(foreign.name, lambda foreign=foreign: reference(foreign))
            print(f"{foreign.name}: R-hat {found['r_hat']}", flush=True)
            jax.clear_caches()
    if args.what == "fit":
        kept = finished(RECORDS, names, args.again)
        print(HEAD)
        for foreign in chosen:
            if foreign.name not in references:
                print(f"{foreign.name}: no reference yet", flush=True)
                continue
            entry = references[foreign.name]
            record = kept.get(
                foreign.name,
                lambda foreign=foreign, entry=entry: measure(foreign, entry["sites"]),
            )
            print(line(foreign, record, entry["r_hat"]), flush=True)
            jax.clear_caches()
    if args.what != "reference":
        put_between_marks(PAGE, table(read(RECORDS), references))


if __name__ == "__main__":
    main()
