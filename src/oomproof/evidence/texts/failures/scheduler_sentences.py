"""What schedulers, cluster managers, clouds and notebook servers print when they end a job or lose it."""

from __future__ import annotations

from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import JobFacts

_REQUESTS = r"[Ss]equence group|KV cache|\bnot preempted"  # vLLM's scheduler preempts requests, not jobs
_ENDED = "the scheduler ended the job (cancelled, out of time, or preempted)"
_SACCT = (
    r"^\d{1,10}(?:[._+]\w{1,12})*\s.{0,160}\s(?:CANCELLED\+?|TIMEOUT|PREEMPTED|NODE_FAIL)\s+\d{1,3}:\d{1,3}\b"
)

SCHEDULERS = (
    Rule("slurm-oom", "Slurm saw the kernel kill processes of this job for memory", 0.95,
        Row("oom-kill event"), Row("oom_kill event"), Row("killed by the cgroup out-of-memory handler"),
        Row("Out Of Memory", "srun: error: node17: task 0: Out Of Memory", r"\berror:.{0,120}Out Of Memory|\btask.{1,40} Out Of Memory"),
        Row("memory limit", "slurmstepd: error: Job 4242 exceeded memory limit (9000000 > 8388608), being killed",
            r"Exceeded (?:job|step) memory limit|(?:Step|Job)\S* ?\S* exceeded (?:virtual )?memory limit"),
        Row("OUT_OF_MEMORY", "State: OUT_OF_MEMORY (exit code 0)", r"State[:=]\s*OUT_OF_MEMORY|Slurm Job_id=.{0,160}, OUT_OF_MEMORY"),
        Row("TERM_", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", r"\bTERM_(?:MEMLIMIT|SWAP)\b"),
        Row("job killed: ", "=>> PBS: job killed: vmem 9000000kb exceeded limit 8000000kb", r"job killed: (?:v?mem|pmem)\b"),
        Row('hard limit "', 'job 4242 exceeds job hard limit "h_vmem" of queue "all.q"', r'hard limit "[hs]_(?:vmem|rss|data)"')),  # SGE
    Rule("ray-oom", "Ray's memory monitor killed a worker: the node was short of memory", 0.93,
        Row("OutOfMemoryError", "ray.exceptions.OutOfMemoryError: Task was killed.", r"ray\.exceptions\.OutOfMem|RayOutOfMem"),
        Row("killed due to memory pressure", "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
            other="(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM)"),
        Row("due to the node running low on memory"), Row("exceeds the memory usage threshold"), Row("ObjectStoreFullError"),
        unless=r"\b0 Workers \(tasks / actors\) killed due to memory"),
    Rule("dask-oom", "Dask's nanny ended a worker at its memory limit", 0.95,
        Row("memory budget. ", "Worker tcp://127.0.0.1:41233 (pid=4242) exceeded 95% memory budget. Restarting...",
            r"[Ww]orker (?:\S+ \(pid=(?P<pid>\d+)\) )?exceeded \d+% memory budget\.\s{1,4}Restarting", {"pids": (4242,)})),
    Rule("interrupted", _ENDED, 0.9,
        Row("CANCELLED AT", "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***"),
        unless=rf"DUE TO|{_REQUESTS}", facts=JobFacts(cancelled=True)),
    Rule("interrupted", _ENDED, 0.9,
        Row("CANCELLED ", "*** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***",
            r"CANCELLED (?:AT|DUE|BY|\+|by)"),
        Row(" DUE TO ", "error: JOB 4242 DUE TO NODE FAILURE", " DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE|JOB NOT ENDING|SIGNAL)"),
        Row("State", "State: TIMEOUT (exit code 0)", r"State[:=]\s*(?:CANCELLED|TIMEOUT|PREEMPTED)"),
        Row("TERM_", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
            r"\bTERM_(?:(?:RUN|CPU|PROCESS)LIMIT|PREEMPT|\w*ADMIN|DEADLINE|LOAD)\b"),
        Row("job killed: ", "=>> PBS: job killed: walltime 3610 exceeded limit 3600",
            r"job killed: (?:exceeded )?(?:walltime|cput|ncpus)\b"),
        Row("reempted", "The job was preempted.", r"(?:[Jj]ob|[Nn]ode|[Ii]nstance|[Ww]orker|VM)\b.{0,40}\b[Pp]reempted",
            other="Sequence group 0 is preempted by PreemptionMode.RECOMPUTE because there is not enough KV cache space"),
        unless=_REQUESTS),
)  # fmt: skip

# Asked after the crashes: these lines often stand beside one that says more
RUNNERS = (
    Rule("oom-kill-memcg", "the container was killed at its memory limit", 0.85,
        Row("exceeded its memory limit of"), Row("beyond the 'PHYSICAL' memory limit"),  # Kubernetes, YARN
        kind="summary"),
    Rule("interrupted", "the runner or the cluster ended the job from outside", 0.85,
        Row("runner has received a shutdown signal"), Row("the maximum execution time of"),  # GitHub
        Row("The operation was cancel", "##[error]The operation was canceled.",
            r"^(?:#\[error\] ?|Error: )?The operation was cancell?ed\.?$"),
        Row("Job failed: ", "ERROR: Job failed: execution took longer than 1h0m0s seconds",
            "Job failed: (?:cancell?ed$|execution took longer)"),
        Row("SpotInterruption"), Row("imminent node shutdown"),
        Row("DeadlineExceeded", "reason: DeadlineExceeded", r"reason\W{1,4}DeadlineExc"),
        *(Row(state, f"4242   train   gpu   lab   8    {state}   0:0", _SACCT) for state in ("CANCELLED+", "TIMEOUT", "PREEMPTED",
            "NODE_FAIL")),
        kind="summary"),
    Rule("killed-unknown", "the machine or the process around the job was lost; nothing says why", 0.6,
        Row("lost communication with the server"),  # GitHub
        Row("Host EC2 (instance"), Row("srun: error: Node failure on"), Row("NodeDiedError"), Row("LocalRayletDiedError"),
        Row("TERM_", "TERM_UNKNOWN: unknown reason", r"\bTERM_(?:UNKNOWN|EXTERNAL_SIGNAL)\b"),  # LSF
        Row("KernelRestarter: restart"), Row("session crashed for an unknown reason"),
        Row("Canceled future for execute_request"),  # notebooks
        Row("Python kernel is unresponsive"), Row("driver has stopped unexpectedly"),  # Databricks
        Row("eceived sigquit from a child process"),  # SGLang
        Row("Negsignal.SIGKILL"), Row("Detected zombie job"), Row("Was the task killed externally?"),  # Airflow
        kind="summary"),
    Rule("interrupted", "a user, or the server's own timeout, ended it", 0.35,
        Row("WORKER TIMEOUT (pid:"),  # gunicorn
        Row("TERM_", "TERM_OWNER: job killed by owner.", r"\bTERM_(?:FORCE_)?OWNER: "),  # LSF
        kind="wrapper"),
    Rule("disk-full", "the pod was evicted: its node had run out of disk space", 0.8,
        Row("low on resource: ephemeral-storage"), Row("ephemeral local storage usage exceeds"), Row("Usage of EmptyDir volume"),
        kind="summary"),
    Rule("other-error", "the container keeps ending; what ended it stands elsewhere", 0.3,
        Row("Back-off restarting failed container"), kind="wrapper"),
)  # fmt: skip

# A search says that one trial failed, not why
TRIALS = (
    Rule("other-error", "a trial of the search failed", 0.4,
        Row("Number of errored trials: ", "Number of errored trials: 1", "^Number of errored trials: [1-9]"),
        Row(" errored", "Trial train_4242 errored after 3 iterations", r"^(?:Trial|Run) \S{1,120} errored\b"),
        Row("failed runs in the first"),  # Weights & Biases
        kind="wrapper", only="printed"),
)  # fmt: skip
