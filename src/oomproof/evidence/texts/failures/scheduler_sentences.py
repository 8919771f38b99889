"""What schedulers, cluster managers, clouds and notebook servers print when they end a job or lose it."""

from __future__ import annotations

from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import JobFacts

_REQUESTS = r"[Ss]equence group|KV cache|\bnot preempted"  # vLLM's scheduler preempts requests, not jobs
_ENDED = "the scheduler ended the job (cancelled, out of time, or preempted)"
_SACCT = (
    r"^\d{1,10}(?:[._+]\w{1,12})*\s.{0,160}\s(?:CANCELLED\+?|TIMEOUT|PREEMPTED|NODE_FAIL)\s+\d{1,3}:\d{1,3}\b"
)
_REQUEUED = (
    r"\bTERM_(?:RUNLIMIT|(?:FORCE_)?ADMIN|PREEMPT|CPULIMIT|DEADLINE|PROCESSLIMIT|REQUEUE_\w+|LOAD|WINDOW)\b"
)

SCHEDULERS = (
    Rule("slurm-oom", "Slurm saw the kernel kill processes of this job for memory", 0.95,
         Row("oom-kill event", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4242.batch."),
         Row("oom_kill event", "slurmstepd: error: Detected 2 oom_kill events in StepId=4242.0."),
         Row("killed by the cgroup out-of-memory handler"),
         Row("Out Of Memory", "srun: error: node17: task 0: Out Of Memory", r"\berror:.{0,120}Out Of Memory|\btask.{1,40} Out Of Memory"),
         Row("memory limit", "slurmstepd: error: Job 4242 exceeded memory limit (9000000 > 8388608), being killed",
             r"Exceeded (?:job|step) memory limit|(?:Step|Job)\S* ?\S* exceeded (?:virtual )?memory limit"),
         Row("OUT_OF_MEMORY", "State: OUT_OF_MEMORY (exit code 0)", r"State[:=]\s*OUT_OF_MEMORY|\bSlurm Job_id=.{0,160}, OUT_OF_MEMORY"),
         Row("TERM_", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", r"\bTERM_(?:MEMLIMIT|SWAP)\b"),
         Row("job killed: ", "=>> PBS: job killed: vmem 9000000kb exceeded limit 8000000kb", r"job killed: (?:v?mem|pmem)\b"),
         Row('hard limit "', 'job 4242 exceeds job hard limit "h_vmem" of queue "all.q" - sending SIGKILL', r'hard limit "[hs]_(?:vmem|rss|data)"')),
    Rule("ray-oom", "Ray's memory monitor killed a worker: the node was short of memory", 0.93,
         Row("OutOfMemoryError", "ray.exceptions.OutOfMemoryError: Task was killed.", r"ray\.exceptions\.OutOfMemoryError|RayOutOfMemoryError"),
         Row("killed due to memory pressure", "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
             other="(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM)"),
         Row("due to the node running low on memory"),
         Row("exceeds the memory usage threshold"),
         Row("ObjectStoreFullError", "ray.exceptions.ObjectStoreFullError: Failed to put object ffff in object store because it is full."),
         unless=r"\b0 Workers \(tasks / actors\) killed due to memory"),
    Rule("dask-oom", "Dask's nanny ended a worker at its memory limit", 0.95,
         Row("memory budget. ", "Worker tcp://127.0.0.1:41233 (pid=4242) exceeded 95% memory budget. Restarting...",
             r"[Ww]orker (?:\S+ \(pid=(?P<pid>\d+)\) )?exceeded \d+% memory budget\.\s{1,4}Restarting", {"pids": (4242,)})),
    Rule("interrupted", _ENDED, 0.9,
         Row("CANCELLED AT", "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***"),
         unless=rf"DUE TO|{_REQUESTS}", facts=JobFacts(cancelled=True)),
    Rule("interrupted", _ENDED, 0.9,
         Row("CANCELLED ", "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***",
             r"CANCELLED (?:AT|DUE|BY|\+|by)"),
         Row(" DUE TO ", "slurmstepd: error: JOB 4242 DUE TO NODE FAILURE", r" DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE|JOB NOT ENDING|SIGNAL)"),
         Row("TERM_", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.", _REQUEUED),
         Row("job killed: ", "=>> PBS: job killed: walltime 3610 exceeded limit 3600", r"job killed: (?:exceeded )?(?:walltime|cput|ncpus)\b"),
         Row("srun: Force Terminated"),
         Row("State", "State: TIMEOUT (exit code 0)", r"State[:=]\s*(?:CANCELLED|TIMEOUT|PREEMPTED)"),
         Row("Slurm Job_id=", "Slurm Job_id=4242 Name=train Failed, Run time 08:00:11, TIMEOUT, ExitCode 0",
             r"\bSlurm Job_id=.{0,160}, (?:TIMEOUT|CANCELLED|PREEMPTED|NODE_FAIL|DEADLINE)\b"),
         Row('hard limit "', 'job 4242 exceeds job hard limit "h_rt" of queue "all.q" - sending SIGKILL', r'hard limit "[hs]_(?:rt|cpu)"'),
         Row("reempted", "The job was preempted.", r"(?:[Jj]ob|[Nn]ode|[Ii]nstance|[Ww]orker|VM)\b.{0,40}\b[Pp]reempted",
             other="Sequence group 0 is preempted by PreemptionMode.RECOMPUTE because there is not enough KV cache space"),
         unless=_REQUESTS),
)  # fmt: skip

# Asked after the crashes: these lines often stand beside one that says more
RUNNERS = (
    Rule("oom-kill-memcg", "the container was killed at its memory limit", 0.85,
         Row("memory limit of ", "Reason: OutOfMemory, the container exceeded its memory limit of 512Mi and was killed.",
             r"exceeded its memory limit of \S{1,20} and was (?:killed|terminated)"),
         Row("beyond the 'PHYSICAL' memory limit"),  # YARN 3
         kind="summary"),
    Rule("interrupted", "the runner or the cluster ended the job from outside", 0.85,
         Row("unner has received a shutdown signal", "##[error]The runner has received a shutdown signal."),  # GitHub
         Row("The operation was cancel", "##[error]The operation was canceled.", r"^(?:#\[error\] ?|Error: )?The operation was cancell?ed\.?$"),
         Row("the maximum execution time of ", "The job running on runner gpu-1 has exceeded the maximum execution time of 360 minutes."),
         Row("Job failed: ", "ERROR: Job failed: execution took longer than 1h0m0s seconds", r"Job failed: (?:cancell?ed$|execution took longer)"),
         Row("Job was ", "004 (4242.000.000) 05/01 10:00:00 Job was evicted.", r"^00[49] \(\d+\.\d+\.\d+\) .{0,30}Job was (?:evicted|aborted)"),  # HTCondor
         Row("SpotInterruption"),
         Row("imminent node shutdown"),
         Row("DeadlineExceeded", "reason: DeadlineExceeded", r"(?:[Rr]eason\W{1,4}|deadline\W{1,4})DeadlineExceeded\b"),
         *(Row(state, f"4242   train   gpu   lab   8    {state}   0:0", _SACCT) for state in ("CANCELLED+", "TIMEOUT", "PREEMPTED", "NODE_FAIL")),
         kind="summary"),
    Rule("killed-unknown", "the machine or the process around the job was lost; nothing says why", 0.6,
         Row("lost communication with the server", "The hosted runner: GitHub Actions 9 lost communication with the server."),
         Row("Host EC2 (instance ", "StatusReason: Host EC2 (instance i-0abc12345) terminated.", r"Host EC2 \(instance \S{1,40}\) terminated"),
         Row("driver has stopped unexpectedly", "The spark driver has stopped unexpectedly and is restarting."),  # Databricks
         Row("TERM_", "TERM_UNKNOWN: unknown reason", r"\bTERM_(?:UNKNOWN|EXTERNAL_SIGNAL)\b"),
         Row("Node failure on ", "srun: error: Node failure on node17"),
         Row("DiedError: ", "ray.exceptions.NodeDiedError: Task failed due to the node dying.", r"(?:Node|LocalRaylet)DiedError: "),
         Row("KernelRestarter: restart", "AsyncIOLoopKernelRestarter: restarting kernel (1/5), keep random ports"),  # Jupyter
         Row("session crashed for an unknown reason"),  # Colab
         Row("Canceled future for execute_request"),  # VS Code
         Row("The Python kernel is unresponsive"),  # Databricks
         Row("eceived sigquit from a child process"),  # SGLang
         Row("Detected zombie job"),  # Airflow
         Row("Was the task killed externally?"),  # Airflow
         Row("Negsignal.SIGKILL", "INFO - Task exited with return code Negsignal.SIGKILL"),  # Airflow
         kind="summary"),
    Rule("interrupted", "a user, or the server's own timeout, ended it", 0.35,
         Row("WORKER TIMEOUT (pid:", "[CRITICAL] WORKER TIMEOUT (pid:4242)"),  # gunicorn
         Row("TERM_", "TERM_OWNER: job killed by owner.", r"\bTERM_(?:FORCE_)?OWNER: "),  # LSF
         kind="wrapper"),
    Rule("disk-full", "the pod was evicted: its node had run out of disk space", 0.8,
         Row("low on resource: ephemeral-storage"),
         Row("Usage of EmptyDir volume ", 'Usage of EmptyDir volume "scratch" exceeds the limit "8Gi".'),
         Row("ephemeral local storage usage exceeds"),
         kind="summary"),
    Rule("other-error", "the container keeps ending; what ended it stands elsewhere", 0.3,
         Row("Back-off restarting failed container"), kind="wrapper"),
)  # fmt: skip

# A search says that one trial failed, not why
TRIALS = (
    Rule("other-error", "a trial of the search failed", 0.4,
         Row("Number of errored trials: ", "Number of errored trials: 1", r"^Number of errored trials: [1-9]"),
         Row(" errored", "Trial train_4242 errored after 3 iterations", r"^(?:Trial|Run) \S{1,120} errored\b"),
         Row("failed runs in ", "wandb: ERROR Detected 3 failed runs in the first 60 seconds, killing sweep.", r"Detected \d+ failed runs in "),
         kind="wrapper", only="printed"),
)  # fmt: skip
