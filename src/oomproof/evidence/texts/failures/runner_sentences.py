"""What continuous integration, clouds and cluster managers say when a job, or the machine below it, was ended."""

from __future__ import annotations

from oomproof.evidence.texts.failures.rules import Row, Rule

# a row of `sacct`
_ROW, _CODES = r"^\d{1,10}(?:[._+]\w{1,12})*\s.{0,160}\s", r"\s+\d{1,3}:\d{1,3}\b"

RUNNERS = (
    Rule("slurm-oom", "the scheduler ended the job at its memory limit", 0.93,
         Row("hard limit ", 'failed 100 : assumedly after job; job 4242 exceeds job hard limit "h_vmem" of queue "all.q" - sending SIGKILL', r"exceed(?:s|ed) (?:job )?hard limit \"[hs]_(?:vmem|rss|data)\"")),  # SGE
    Rule("oom-kill-memcg", "the container was killed at its memory limit", 0.85,
         Row("memory limit of ", "Reason: OutOfMemory, the container exceeded its memory limit of 512Mi and was killed.", r"exceeded its memory limit of \S{1,20} and was (?:killed|terminated)"),
         Row("Runtime.OutOfMemory", "REPORT RequestId: 8f5 Memory Size: 128 MB Max Memory Used: 129 MB Status: error Error Type: Runtime.OutOfMemory"),  # AWS Lambda
         Row(" memory limit of ", "Exceeded hard memory limit of 512 MB with 530 MB after servicing 3 requests total.", r"Exceeded (?:soft|hard) memory limit of \d+ ?M[iB]{0,2} with \d"),  # App Engine
         Row("Error R15 (", "Error R15 (Memory quota vastly exceeded)"),  # Heroku
         Row("beyond the 'PHYSICAL' memory limit", "Container [pid=4242,containerID=container_1] is running 12345B beyond the 'PHYSICAL' memory limit. Killing container."),  # YARN 3
         kind="summary"),
    Rule("interrupted", "the runner or the cluster ended the job from outside", 0.85,
         Row("received a shutdown signal", "##[error]The runner has received a shutdown signal. This can happen when the runner service is stopped", r"\brunner has received a shutdown signal"),
         Row("The operation was cancel", "##[error]The operation was canceled.", r"^(?:#\[error\] ?|Error: )?The operation was cancell?ed\.?$"),
         Row("exceeded the maximum execution time of ", "The job running on runner gpu-1 has exceeded the maximum execution time of 360 minutes."),
         Row("Job failed: canceled", "ERROR: Job failed: canceled", r"\bJob failed: cancell?ed$"),
         Row("Too long with no output (", "Too long with no output (exceeded 10m0s): context deadline exceeded", r"^Too long with no output \(exceeded "),
         Row("Hard time limit (", "Hard time limit (300s) exceeded for tasks.train[8f5]", r"^Hard time limit \(\d+s\) exceeded for "),  # Celery
         Row("Job was ", "004 (4242.000.000) 05/01 10:00:00 Job was evicted.", r"^00[49] \(\d+\.\d+\.\d+\) [^\n]{0,30}Job was (?:evicted|aborted)"),  # HTCondor
         Row("process killed (SIGTERM)", "forrtl: error (78): process killed (SIGTERM)", r"^forrtl: error \(78\): process killed \(SIGTERM\)"),
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
         Row(" signal", "Received 'killed' signal", r"\bReceived [\"']killed[\"'] signal"),  # CircleCI
         Row("KernelRestarter: restart failed", "AsyncIOLoopKernelRestarter: restart failed"),
         Row(" restarted", "WARNING:root:kernel 5f2a91c3-0000-4000-8000-1234567890ab restarted", r"\bkernel [0-9a-f]{8}-[0-9a-f-]{27} restarted$"),
         Row("session crashed for an unknown reason", "Your session crashed for an unknown reason."),  # Colab
         Row("Canceled future for execute_request", "Canceled future for execute_request message before replies were done"),
         Row("Python kernel is unresponsive", "Fatal error: The Python kernel is unresponsive."),  # Databricks
         Row("TERM_", "TERM_UNKNOWN: unknown reason", r"\bTERM_(?:UNKNOWN|EXTERNAL_SIGNAL): "),  # LSF
         Row("eceived sigquit from a child process", "Received sigquit from a child process. It usually means the child failed."),  # SGLang
         Row("Detected zombie job: ", "Detected zombie job: {'full_filepath': '/dags/x.py'}"),  # Airflow
         Row("Was the task killed externally?", "Executor reports task instance x finished (failed) although the task says it's queued. Was the task killed externally?"),
         Row("terminated for an unknown reason", "Process `ALIGN (1)` terminated for an unknown reason -- Likely it has been terminated by the external system", r"^\s*Process `[^`\n]{1,120}` terminated for an unknown reason"),  # Nextflow
         Row("(node$con", "Error in unserialize(node$con) : error reading from connection", r"^Error in unserialize\(node\$con\) ?: error reading from connection"),  # R: a worker of a cluster is gone
         Row("node$con", "Error in serialize(data, node$con) : error writing to connection", r"^Error in serialize\(data, node\$con[^)\n]{0,20}\) ?: error writing to connection"),
         Row(" did not deliver a result", "scheduled core 3 did not deliver a result, all values of the job will be affected", r"^\s*scheduled cores? [\d, ]{1,60} did not deliver a result"),
         Row("ProcessExitedException(", "ERROR: LoadError: ProcessExitedException(2)"),  # Julia
         Row("EXC_CRASH (SIGKILL)", "Exception Type:        EXC_CRASH (SIGKILL)"),  # macOS
         Row("internal compiler error: Killed", "g++: internal compiler error: Killed (program cc1plus)"),
         Row("Negsignal.SIGKILL", "INFO - Task exited with return code Negsignal.SIGKILL"),  # Airflow
         Row("was killed before it finished", "ERROR - Job 4242 was killed before it finished (likely due to running out of memory)"),
         kind="summary"),
    # … and what a line below it may say more of
    Rule("interrupted", "somebody, or the server's own timeout, ended it", 0.35,
         Row("WORKER TIMEOUT (pid:", "[CRITICAL] WORKER TIMEOUT (pid:4242)"),  # gunicorn
         Row("TERM_", "TERM_OWNER: job killed by owner.", r"\bTERM_(?:FORCE_)?OWNER: "),  # LSF
         kind="wrapper"),
    Rule("disk-full", "the pod was evicted: its node had run out of disk space", 0.8,
         Row("low on resource: ephemeral-storage", "The node was low on resource: ephemeral-storage. Container main was using 12Gi"),
         Row("Usage of EmptyDir volume ", 'Usage of EmptyDir volume "scratch" exceeds the limit "8Gi".', r"Usage of EmptyDir volume \S{1,80} exceeds the limit"),
         Row("ephemeral local storage usage exceeds", "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi."),
         kind="summary"),
    Rule("segfault", "a worker crashed in native code", 0.85,
         Row("Negsignal.SIGSEGV", "INFO - Task exited with return code Negsignal.SIGSEGV"),  # Airflow
         Row("got Segmentation Fault !!!", "!!! uWSGI process 4242 got Segmentation Fault !!!", r"uWSGI process (?P<pid>\d{1,9}) got Segmentation Fault", {"pids": (4242,)}),
         Row("AddressSanitizer: SEGV", "==4242==ERROR: AddressSanitizer: SEGV on unknown address 0x000000000000", r"\bERROR: AddressSanitizer: SEGV on"),
         kind="summary"),
    Rule("other-error", "the container keeps ending; what ended it stands elsewhere", 0.3,
         Row("Back-off restarting failed container", "Back-off restarting failed container train in pod train-0"),
         kind="wrapper"),
)  # fmt: skip
