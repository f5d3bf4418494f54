"""What Spark's settings mean for a fit, as findings of a preflight check. All of it follows from plain settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elephas_like.core.errors import ElephasError, PlainTextError
from elephas_like.core.findings import Finding, Level, one_line, size_text
from elephas_like.spark.encryption import check_disks, wants_tls
from elephas_like.spark.session import Conf, is_on

TENSORFLOW_BYTES = 512 * 2**20
"""About the memory of a Python process that has imported TensorFlow."""
ADDRESS_SPACE = 2 * 2**30
"""About the address space of such a process, most of which is no memory."""
COPIES_ON_WORKER = 5
"""Copies of the state that a worker holds at most: its variables, gradients, the order and the update."""
_LEAST_OVERHEAD, _OVERHEAD_FACTOR = "384m", 0.1


def size_bytes(text: str, unit: int = 1) -> int:
    """Return the bytes of one of Spark's sizes ("1g", "512m", "0").

    Args:
        unit: bytes of a number without a suffix; 2**20 for settings of memory.
    """
    units = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
    written = text.strip().lower()
    digits = written.rstrip("b")
    if digits and digits[-1] in units:
        return int(digits[:-1]) << units[digits[-1]]
    return int(digits or 0) * (1 if written.endswith("b") else unit)


def largest_result(conf: Conf) -> int:
    """Return the bytes that the results of one job may have, by `spark.driver.maxResultSize`; 0 for any number."""
    return size_bytes(conf.get("spark.driver.maxResultSize", "1g") or "1g")


def check_result_size(what: str, needed: int, limit: int, instead: str = "") -> None:
    """Raise if Spark would refuse what a job returns, when all its work is done.

    Args:
        what: begins the message: "what 8 updates hold".
        needed, limit: bytes; a limit of 0 is none.
        instead: ends the message: what else can be done.

    Raises:
        ElephasError: it would.
    """
    if limit and needed > limit:
        raise ElephasError(
            f"{what}, {needed / 2**20:.0f} MiB, is more than spark.driver.maxResultSize ({limit / 2**20:.0f} MiB). "
            f"Raise it{instead}."
        )


def setting_findings(
    conf: Mapping[str, str], *, server: bool, tls: bool | tuple[str, str] | None = None, allow_plain_text: bool = False
) -> Iterator[Finding]:
    """Yield what settings of Spark mean for a fit.

    Args:
        server: whether its workers exchange with a parameter server.
        tls, allow_plain_text: what the fit is asked for.
    """
    yield _dynamic_allocation(conf)
    yield _speculation(conf, server)
    yield _task_cpus(conf)
    yield _encryption(conf, server, tls, allow_plain_text)
    yield from _idle_workers(conf)
    yield from _address_space(conf)
    yield from _dumps(conf)


def _idle_workers(conf: Mapping[str, str]) -> Iterator[Finding]:
    seconds = conf.get("spark.python.worker.idleTimeoutSeconds", "0").removesuffix("s")
    if is_on(conf, "spark.python.worker.killOnIdleTimeout") and seconds != "0":
        text = (
            f"Spark kills those that neither take nor give a row for {seconds} s (spark.python.worker.idleTimeoutSeconds), as one "
            "does not while it trains. Set spark.python.worker.killOnIdleTimeout=false."
        )
        yield Finding("python workers", Level.PROBLEM, text)


def _address_space(conf: Mapping[str, str]) -> Iterator[Finding]:
    limit = size_bytes(conf.get("spark.executor.pyspark.memory", "0"), 2**20)
    if limit:
        each = limit // int(conf.get("spark.executor.cores", "1"))  # as Spark divides it
        little = each < ADDRESS_SPACE
        text = (
            f"spark.executor.pyspark.memory limits the address space of each to {size_text(each)}, and libraries and mapped files count. "
            + (
                f"TensorFlow takes about {size_text(ADDRESS_SPACE)} before it trains: leave the setting out"
                if little
                else "Better leave it out"
            )
            + ", and raise spark.executor.memoryOverhead in its place."
        )
        yield Finding("python workers", Level.PROBLEM if little else Level.NOTE, text)


def _dumps(conf: Mapping[str, str]) -> Iterator[Finding]:
    seconds = conf.get("spark.python.worker.tracebackDumpIntervalSeconds", "0").removesuffix("s")
    if seconds != "0":
        text = (
            f"Spark has each worker write down what it does every {seconds} s (spark.python.worker.tracebackDumpIntervalSeconds), while its "
            "threads run on. Python may crash at that (faulthandler.dump_traceback_later). Leave the setting out where nothing hangs."
        )
        yield Finding("python workers", Level.NOTE, text)


def _encryption(
    conf: Mapping[str, str], server: bool, tls: bool | tuple[str, str] | None, allow_plain_text: bool
) -> Finding:
    try:
        check_disks(conf, allow_plain_text=allow_plain_text)
        encrypted = server and wants_tls(conf, tls, allow_plain_text=allow_plain_text)
    except PlainTextError as error:
        return Finding("encryption", Level.PROBLEM, one_line(error))
    if not server:
        return Finding("encryption", Level.OK, "all is sent by Spark, as its settings say")
    return Finding("encryption", Level.OK, f"the parameter server speaks {'TLS' if encrypted else 'plain text'}")


def executor_memory(conf: Mapping[str, str], master: str, state_bytes: int) -> Finding:
    """Return whether an executor has room for its workers' Python processes, outside of its Java heap.

    Args:
        state_bytes: of the model's state.
    """
    name = "memory of executors"
    each = TENSORFLOW_BYTES + COPIES_ON_WORKER * state_bytes
    needs = f"a worker's Python process takes about {size_text(each)}"
    if master.startswith("local"):
        return Finding(name, Level.OK, f"{needs}; tasks share the driver's machine, and Spark sets no limit")
    heap = size_bytes(conf.get("spark.executor.memory", "1g"), 2**20)
    overhead = _overhead(conf, heap)
    workers = max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))
    text = (
        f"{needs}, outside of the heap (spark.executor.memory, {size_text(heap)}); spark.executor.memoryOverhead and "
        f"spark.executor.pyspark.memory leave {size_text(overhead)} for {workers} of them"
    )
    if workers * each <= overhead:
        return Finding(name, Level.OK, text)
    if master.startswith(("yarn", "k8s")):  # which kill an executor beyond its limit
        wanted = -(-workers * each // 2**20)
        return Finding(name, Level.PROBLEM, f"{text}. Set spark.executor.memoryOverhead={wanted}m, or fewer cores.")
    return Finding(name, Level.OK, f"{text}, which {master.partition(':')[0]} does not enforce")


def _overhead(conf: Mapping[str, str], heap: int) -> int:
    """Return the bytes that an executor has for Python, by Spark's own defaults."""
    factor = float(conf.get("spark.executor.memoryOverheadFactor", str(_OVERHEAD_FACTOR)))
    least = size_bytes(conf.get("spark.executor.minMemoryOverhead", _LEAST_OVERHEAD), 2**20)  # from Spark 4.0 on
    default = str(max(least, int(factor * heap)) // 2**20)
    return sum(
        size_bytes(conf.get(name, value), 2**20)
        for name, value in (("spark.executor.memoryOverhead", default), ("spark.executor.pyspark.memory", "0"))
    )


def _dynamic_allocation(conf: Mapping[str, str]) -> Finding:
    name = "dynamic allocation"
    if not is_on(conf, "spark.dynamicAllocation.enabled"):
        return Finding(name, Level.OK, "off: executors stay for the whole fit")
    most = conf.get("spark.dynamicAllocation.maxExecutors", "no limit")
    return Finding(
        name,
        Level.NOTE,
        f"on (maxExecutors: {most}). Give num_workers=, so that Spark starts executors for them; raise join_timeout if "
        "these take longer than a minute.",
    )


def _speculation(conf: Mapping[str, str], server: bool) -> Finding:
    if not is_on(conf, "spark.speculation"):
        return Finding("speculation", Level.OK, "off")
    costs = (
        "a copy of a slow worker waits in a slot of its own; each update counts once"
        if server
        else "a copy of a slow task that runs where its shard is not waits in a slot; the first one costs a round"
    )
    return Finding("speculation", Level.NOTE if server else Level.OK, f"on: {costs}")


def _task_cpus(conf: Mapping[str, str]) -> Finding:
    cores, cpus = conf.get("spark.executor.cores"), int(conf.get("spark.task.cpus", "1"))
    if cores is not None and int(cores) < cpus:
        text = (
            f"spark.task.cpus={cpus} is more than spark.executor.cores={cores}: no task can run. Lower the first one."
        )
        return Finding("task cpus", Level.PROBLEM, text)
    return Finding("task cpus", Level.OK, f"a worker computes on {cpus} core{'s' * (cpus > 1)} (spark.task.cpus)")
