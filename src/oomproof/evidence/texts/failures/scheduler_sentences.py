"""What Slurm, Ray, LSF and PBS say when they, or the kernel under them, end a job; and searches over many trials."""

from __future__ import annotations

from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import JobFacts

_REQUESTS = r"[Ss]equence group|KV cache|\bnot preempted"  # vLLM's scheduler uses the word for requests
_ENDED = "the scheduler ended the job (cancelled, out of time, or preempted)"

SCHEDULERS = (
    Rule("slurm-oom", "Slurm saw the kernel kill processes of this job for memory", 0.95,
         Row("oom-kill event", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4242.batch.", r"Detected \d+ oom-kill event|\boom-kill event\(s\) in"),
         Row("oom_kill event", "slurmstepd: error: Detected 2 oom_kill events in StepId=4242.0.", r"Detected \d+ oom_kill event"),
         Row("killed by the cgroup out-of-memory handler", "Some of your processes may have been killed by the cgroup out-of-memory handler."),
         Row("Out Of Memory", "srun: error: node17: task 0: Out Of Memory", r"(?:srun|slurmstepd): error:.{0,120}Out Of Memory|tasks? [\d,-]+: Out Of Memory"),
         Row("memory limit", "slurmstepd: error: Exceeded job memory limit at some point.", r"Exceeded (?:job|step) memory limit"),
         Row("memory limit", "slurmstepd: error: Job 4242 exceeded memory limit (9000000 > 8388608), being killed",
             r"(?:Step|Job|StepId=|JobId=)\S* ?\S* exceeded (?:virtual )?memory limit"),
         Row("OUT_OF_MEMORY", "State: OUT_OF_MEMORY (exit code 0)", r"State(?::|=)\s*OUT_OF_MEMORY"),
         Row("TERM_MEMLIMIT", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", r"\bTERM_MEMLIMIT\b"),
         Row("Out Of Memory (OOM)", "task 0 (4242) Out Of Memory (OOM)", r"\btask \d+ \(\d+\) Out Of Memory \(OOM\)"),
         Row(", OUT_OF_MEMORY", "Slurm Job_id=4242 Name=train Failed, Run time 00:10:11, OUT_OF_MEMORY", r"\bSlurm Job_id=\d+ [^\n]{0,160}, OUT_OF_MEMORY"),
         Row("TERM_SWAP", "TERM_SWAP: job killed after reaching LSF swap usage limit.", r"\bTERM_SWAP: "),
         Row("job killed: ", "=>> PBS: job killed: vmem 9000000kb exceeded limit 8000000kb", r"job killed: (?:v?mem|pmem)\b.{0,60}exceeded limit")),
    Rule("ray-oom", "Ray's memory monitor killed a worker: the node was short of memory", 0.93,
         Row("OutOfMemoryError", "ray.exceptions.OutOfMemoryError: Task was killed.", r"ray\.exceptions\.OutOfMemoryError|RayOutOfMemoryError"),
         Row("killed due to memory pressure", "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
             other="(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM)"),
         Row("due to the node running low on memory", "Task was killed due to the node running low on memory."),
         Row("exceeds the memory usage threshold", "Memory on the node was 30.1GB / 31.0GB (0.97), which exceeds the memory usage threshold of 0.95."),
         Row("ObjectStoreFullError", "ray.exceptions.ObjectStoreFullError: Failed to put object ffff in object store because it is full."),
         unless=r"\b0 Workers \(tasks / actors\) killed due to memory"),
    Rule("dask-oom", "Dask's nanny ended a worker at its memory limit", 0.95,
         Row("memory budget. ", "distributed.nanny.memory - WARNING - Worker tcp://127.0.0.1:41233 (pid=4242) exceeded 95% memory budget. Restarting...",
             r"Worker \S+ \(pid=(?P<pid>\d+)\) exceeded \d+% memory budget\.\s{1,4}Restarting", {"pids": (4242,)}),
         Row("memory budget. ", "distributed.nanny - WARNING - Worker exceeded 95% memory budget.  Restarting", r"[Ww]orker exceeded \d+% memory budget\.\s{1,4}Restarting"),
         Row("Exceeded memory limit", "distributed.scheduler.KilledWorker: nanny: Exceeded memory limit", r"\b[Nn]anny\b.{0,60}Exceeded memory limit")),
    Rule("other-error", "Slurm could not start the program", 0.6,
         Row("execve(): ", "slurmstepd: error: execve(): /tmp/slurm_script: No such file or directory", r"\berror: (?:task_p\S{0,40} )?execve\(\): "),
         kind="summary"),
    Rule("interrupted", _ENDED, 0.9,
         Row("CANCELLED AT", "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***"),
         unless=rf"DUE TO|{_REQUESTS}", facts=JobFacts(cancelled=True)),
    Rule("interrupted", _ENDED, 0.9,
         Row("CANCELLED ", "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***",
             r"CANCELLED (?:AT|DUE|BY|\+|by)"),
         Row("DUE TO ", "slurmstepd: error: JOB 4242 DUE TO NODE FAILURE", r"\bDUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE|SIGNAL)"),
         Row("TERM_RUNLIMIT", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.", r"\bTERM_RUNLIMIT\b"),
         Row("TERM_", "TERM_PREEMPT: job killed after preemption.", r"\bTERM_(?:ADMIN|FORCE_ADMIN|PREEMPT|CPULIMIT|DEADLINE|PROCESSLIMIT|REQUEUE_OWNER|REQUEUE_ADMIN|LOAD|WINDOW): "),
         Row("job killed: ", "=>> PBS: job killed: walltime 3610 exceeded limit 3600", r"job killed: (?:walltime|cput|ncpus)\b"),
         Row("Force Terminated ", "srun: Force Terminated StepId=4242.0", r"^srun: Force Terminated (?:job|[Ss]tep)"),
         Row("STEPD TERMINATED ON ", "slurmstepd: error: *** JOB 4242 STEPD TERMINATED ON node17 AT 2024-05-01T10:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***"),
         Row("Slurm Job_id=", "Slurm Job_id=4242 Name=train Failed, Run time 08:00:11, TIMEOUT, ExitCode 0", r"\bSlurm Job_id=\d+ [^\n]{0,160}, (?:TIMEOUT|CANCELLED|PREEMPTED|NODE_FAIL|DEADLINE)\b"),
         Row("hard limit ", 'job 4242 exceeds job hard limit "h_rt" of queue "all.q" (3600 > limit:3600) - sending SIGKILL', r"exceed(?:s|ed) (?:job )?hard limit \"[hs]_(?:rt|cpu)\""),  # SGE
         Row("reempted", "The job was preempted.", r"(?:[Jj]ob|[Nn]ode|[Ii]nstance|[Ww]orker|VM)\b.{0,40}\b[Pp]reempted",
             other="Sequence group 0 is preempted by PreemptionMode.RECOMPUTE because there is not enough KV cache space"),
         Row("exceeded walltime", "job killed: exceeded walltime"),
         Row("CANCELLED", "State: CANCELLED (exit code 0)", r"State(?::|=)\s*CANCELLED"),
         Row("TIMEOUT", "State: TIMEOUT (exit code 0)", r"State(?::|=)\s*TIMEOUT"),
         Row("PREEMPTED", "JobState=PREEMPTED Reason=None, exit code 0", r"State(?::|=)\s*PREEMPTED"),
         unless=_REQUESTS),
)  # fmt: skip
# The searcher tells that one trial failed, not why
TRIALS = (
    Rule("other-error", "a trial of the search failed", 0.4,
         Row("Number of errored trials: ", "Number of errored trials: 1", r"^Number of errored trials: [1-9]"),
         Row(" errored after ", "Trial train_4242 errored after 3 iterations at 2024-05-01 10:00:00.", r"^Trial \S{1,120} errored after \d"),
         Row("Trial status: ", "Trial status: 3 TERMINATED | 1 ERROR", r"^Trial status: [^\n]{0,120}\b[1-9]\d* ERROR\b"),
         Row("failed runs in ", "wandb: ERROR Detected 3 failed runs in the first 60 seconds, killing sweep.",
             r"^(?:wandb: )?(?:ERROR )?Detected \d+ failed runs in (?:the first|a row)"),
         Row(" errored", "Run 8fk2 errored: ValueError()", r"^Run \S{1,40} errored\b"),
         kind="wrapper", only="printed"),
)  # fmt: skip
