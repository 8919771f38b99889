"""What continuous integration, clouds and cluster managers say when a job, or the machine below it, was ended."""

from __future__ import annotations

from oomproof.evidence.texts.failures.rules import Row, Rule

# a row of `sacct`
_ROW, _CODES = r"^\d{1,10}(?:[._+]\w{1,12})*\s.{0,160}\s", r"\s+\d{1,3}:\d{1,3}\b"

RUNNERS = (
    Rule("slurm-oom", "the scheduler ended the job at its memory limit", 0.93,
         Row("exceeds job hard limit", 'failed 100 : assumedly after job; job 4242 exceeds job hard limit "h_vmem" of queue "all.q" - sending SIGKILL', r"exceeds job hard limit \"[hs]_(?:vmem|rss|data)\"")),  # SGE
    Rule("oom-kill-memcg", "the container was killed at its memory limit", 0.85,
         Row("memory limit of ", "Reason: OutOfMemory, the container exceeded its memory limit of 512Mi and was killed.", r"exceeded its memory limit of \S{1,20} and was (?:killed|terminated)"),
         kind="summary"),
    Rule("interrupted", "the runner or the cluster ended the job from outside", 0.85,
         Row("received a shutdown signal", "##[error]The runner has received a shutdown signal. This can happen when the runner service is stopped", r"\brunner has received a shutdown signal"),
         Row("The operation was cancel", "##[error]The operation was canceled.", r"^(?:#\[error\] ?|Error: )?The operation was cancell?ed\.?$"),
         Row("longer than the maximum time of ", "The job running on agent Hosted Agent ran longer than the maximum time of 60 minutes.", r"\bran longer than the maximum time of \d"),
         Row("the maximum time limit", "The job exceeded the maximum time limit for jobs, and has been terminated.", r"[Jj]ob exceeded the maximum time limit"),
         Row("execution took longer than ", "ERROR: Job failed: execution took longer than 1h0m0s seconds", r"Job failed: execution took longer than"),
         Row("Sending interrupt signal to process", "Sending interrupt signal to process"),
         Row("Aborted by ", "Aborted by user jenkins", r"^Aborted by (?:user )?\w"),
         Row("Task timed out after ", "2023-05-01T10:00:00.123Z 8f5 Task timed out after 900.10 seconds", r"\bTask timed out after [\d.]+ seconds"),
         Row("SpotInterruption", "InternalServerError: SpotInterruption: the instance was reclaimed."),
         Row("imminent node shutdown", "Pod was terminated in response to imminent node shutdown."),
         Row("DeadlineExceeded", "Job has reached the specified deadline: DeadlineExceeded", r"(?:[Rr]eason\W{1,4}|deadline\W{1,4})DeadlineExceeded\b"),
         Row("CANCELLED", "4242.batch   batch   lab   4 CANCELLED+    0:15", rf"{_ROW}CANCELLED\+?{_CODES}"),
         Row("TIMEOUT", "4242   train   gpu   lab   8    TIMEOUT      0:0", rf"{_ROW}TIMEOUT{_CODES}"),
         Row("PREEMPTED", "4242   train   gpu   lab   8    PREEMPTED      0:0", rf"{_ROW}PREEMPTED{_CODES}"),
         Row("NODE_FAIL", "4242   train   gpu   lab   8    NODE_FAIL      0:0", rf"{_ROW}NODE_FAIL{_CODES}"),
         kind="summary"),
    Rule("killed-unknown", "the machine or the process around the job was lost; nothing says why", 0.6,
         Row("lost communication with the server", "The hosted runner: GitHub Actions 9 lost communication with the server.", r"\brunner:? .{0,60}\blost communication with the server"),
         Row("Host EC2 (instance ", "StatusReason: Host EC2 (instance i-0abc12345) terminated.", r"Host EC2 \(instance \S{1,40}\) terminated"),
         Row("driver has stopped unexpectedly", "The spark driver has stopped unexpectedly and is restarting."),
         Row("Node failure on ", "srun: error: Node failure on node17", r"^srun: error: Node failure on \S"),
         Row("NodeDiedError", "ray.exceptions.NodeDiedError: Task failed due to the node dying."),
         Row("LocalRayletDiedError", "ray.exceptions.LocalRayletDiedError: The task's local raylet died."),
         Row("daemon disappeared unexpectedly", "Gradle build daemon disappeared unexpectedly (it may have been killed or may have crashed)"),
         Row("R Session Aborted", "R Session Aborted. R encountered a fatal error."),
         Row("KernelRestarter: restarting kernel", "AsyncIOLoopKernelRestarter: restarting kernel (1/5), keep random ports"),
         Row("'killed' signal", "Received 'killed' signal"),
         Row("internal compiler error: Killed", "g++: internal compiler error: Killed (program cc1plus)"),
         Row("Negsignal.SIGKILL", "INFO - Task exited with return code Negsignal.SIGKILL"),  # Airflow
         Row("was killed before it finished", "ERROR - Job 4242 was killed before it finished (likely due to running out of memory)"),
         kind="summary"),
    Rule("disk-full", "the pod was evicted: its node had run out of disk space", 0.8,
         Row("low on resource: ephemeral-storage", "The node was low on resource: ephemeral-storage. Container main was using 12Gi"),
         Row("ephemeral local storage usage exceeds", "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi."),
         kind="summary"),
)  # fmt: skip
