"""The guest's end of the lab's wire: starts commands, watches them, moves files; one thread, JSON lines.

A command gets a fresh cgroup below this service (root) or a PAM session of its own (any other user, through
`su -l`). A login session is `/bin/login -f USER` on a pseudo-terminal, as on a console.
"""

import base64
import ctypes
import glob
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import traceback

PORT = "/dev/vport*p1"  # the first number counts all virtio devices
WORK = "/var/lib/lab"
CGROUP = "/sys/fs/cgroup/system.slice/lab-agent.service"
MAX_OUTPUT = 1 << 20


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def settle_down():
    """Into a cgroup of our own (so that commands can have theirs), with our pages locked in RAM."""
    os.makedirs(CGROUP + "/agent", exist_ok=True)
    write(CGROUP + "/agent/cgroup.procs", str(os.getpid()))
    write(CGROUP + "/cgroup.subtree_control", "+cpu +memory +pids")
    mcl_current, mcl_future, mcl_onfault = 1, 2, 4
    ctypes.CDLL(None, use_errno=True).mlockall(mcl_current | mcl_future | mcl_onfault)


def become_ordinary(cgroup):
    """In the child: undo everything that makes the agent special."""
    write(cgroup + "/cgroup.procs", "0")
    write("/proc/self/oom_score_adj", "0")
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two, and children inherit that
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


class Job:
    def __init__(self, number, user):
        self.number = number
        self.user = user
        self.pid = 0
        self.pidfd = -1
        self.session = None
        self.folder = f"{WORK}/job-{number}"
        self.cgroup = f"{CGROUP}/job-{number}"
        os.makedirs(self.folder, exist_ok=True)

    @property
    def output(self):
        return self.folder + "/out"


class Session:
    def __init__(self, number, user, pid, master):
        self.number, self.user, self.pid, self.master = number, user, pid, master
        self.pidfd = os.pidfd_open(pid)
        self.polled = True
        self.transcript = f"{WORK}/session-{number}.log"
        self.log = open(self.transcript, "ab", buffering=0)  # noqa: SIM115 (lives as long as the session)


class Agent:
    def __init__(self):
        self.port = os.open(glob.glob(PORT)[0], os.O_RDWR | os.O_NONBLOCK)
        self.poll = select.poll()
        self.poll.register(self.port, select.POLLIN)
        self.jobs = {}
        self.sessions = {}
        self.counter = int(time.time())  # unique over restarts of the agent
        self.received = b""

    # -- the wire ------------------------------------------------------------------------------------------

    def send(self, message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            try:
                data = data[os.write(self.port, data[:32768]) :]
            except BlockingIOError:
                select.select([], [self.port], [], 1)

    def receive(self):
        try:
            data = os.read(self.port, 65536)
        except BlockingIOError:
            return
        if not data:  # nobody at the other end
            time.sleep(0.2)
            return
        self.received += data
        *lines, self.received = self.received.split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                answer = getattr(self, "op_" + request.pop("op"))(**request.pop("args"))
                self.send({"id": request["id"], "ok": answer})
            except Exception:
                self.send({"id": request["id"], "error": traceback.format_exc()})

    # -- what the harness may ask --------------------------------------------------------------------------

    def op_start(self, cmd, user):
        self.counter += 1
        job = Job(self.counter, user)
        os.makedirs(job.cgroup)
        argv = ["/bin/sh", "-c", cmd]
        if user != "root":
            argv = ["/bin/su", "-l", "-s", "/bin/sh", user, "-c", cmd]
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
        }
        with open(job.output, "wb") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/root" if user == "root" else "/",
                start_new_session=True,
                preexec_fn=lambda: become_ordinary(job.cgroup),
            )
        process.returncode = 0  # we reap by pidfd; Popen must not
        job.pid = process.pid
        job.pidfd = os.pidfd_open(job.pid)
        self.jobs[job.number] = job
        self.poll.register(job.pidfd, select.POLLIN)
        return {"job": job.number, "pid": job.pid, "output": job.output}

    def op_kill(self, job):
        """Ends a job and everything in its cgroup or its PAM session."""
        found = self.jobs.get(job)
        if found is None or found.session is not None:
            return False
        groups = [found.cgroup]
        try:
            with open(f"/proc/{found.pid}/cgroup") as f:
                path = f.read().strip().partition("::")[2]
            if "/session-" in path:
                groups.append("/sys/fs/cgroup" + path)
        except OSError:
            pass
        for group in groups:
            try:
                write(group + "/cgroup.kill", "1")
            except OSError:
                pass
        return True

    def op_login(self, user):
        self.counter += 1
        number = self.counter
        cgroup = f"{CGROUP}/session-{number}"
        os.makedirs(cgroup)
        pid, master = pty.fork()
        if pid == 0:
            try:
                become_ordinary(cgroup)
                os.execve("/bin/login", ["login", "-f", user], {"TERM": "dumb", "LANG": "C.UTF-8"})
            finally:
                os._exit(127)
        session = Session(number, user, pid, master)
        os.set_blocking(master, False)
        self.sessions[number] = session
        self.poll.register(master, select.POLLIN)
        self.poll.register(session.pidfd, select.POLLIN)
        return {"session": number, "pid": pid, "transcript": session.transcript}

    def op_session_start(self, session, cmd, background):
        """Types a command into the session's shell, with its output and exit status going to files."""
        self.counter += 1
        found = self.sessions[session]
        job = Job(self.counter, found.user)
        job.session = session
        write(job.folder + "/cmd", cmd + "\n")
        in_files = (
            'cd "$HOME"; sh {0}/cmd >{0}/out 2>&1 </dev/null; echo $? >{0}/rc.new; mv {0}/rc.new {0}/rc'
        )
        write(job.folder + "/wrap", in_files.format(job.folder) + "\n")
        subprocess.run(["chown", "-R", found.user, job.folder], check=True)
        self.jobs[job.number] = job
        os.write(found.master, f"sh {job.folder}/wrap{' &' if background else ''}\n".encode())
        return {"job": job.number, "pid": 0, "output": job.output}

    def op_session_type(self, session, text):
        os.write(self.sessions[session].master, text.encode())

    def op_session_hangup(self, session):
        """As when a terminal's window is closed: SIGHUP to the shell, then the terminal goes away.

        Only closing it is not enough: tried, and bash's background jobs lived on. (Not looked into; perhaps
        because `login`, not the shell, leads the session here.) Terminal programs send the signal too.
        """
        found = self.sessions[session]
        try:
            os.killpg(os.tcgetpgrp(found.master), signal.SIGHUP)
        except OSError:
            pass
        time.sleep(0.5)
        self.close_terminal(found)

    def close_terminal(self, found):
        if found.master >= 0:
            if found.polled:
                self.poll.unregister(found.master)
            os.close(found.master)
            found.master = -1

    def op_session_alive(self, session):
        return session in self.sessions

    def op_read(self, path, offset, length):
        with open(path, "rb") as f:
            f.seek(offset)
            return base64.b64encode(f.read(length)).decode()

    def op_write(self, path, data, append):
        with open(path, "ab" if append else "wb") as f:
            f.write(base64.b64decode(data))

    # -- what happens by itself ----------------------------------------------------------------------------

    def finished(self, job, rc):
        del self.jobs[job.number]
        try:
            size = os.path.getsize(job.output)
            with open(job.output, "rb") as f:
                f.seek(max(0, size - MAX_OUTPUT))
                out = f.read().decode(errors="replace")
        except OSError:
            out = ""
        self.send({"done": job.number, "rc": rc, "out": out})
        try:
            os.rmdir(job.cgroup)
        except OSError:
            pass  # a session's job has none; others left something running in it

    def look(self):
        """Ended children, finished jobs of sessions, output of terminals."""
        for job in list(self.jobs.values()):
            if job.session is not None:
                try:
                    with open(job.folder + "/rc") as f:
                        self.finished(job, int(f.read()))
                except FileNotFoundError:
                    pass
                continue
            pid, status = os.waitpid(job.pid, os.WNOHANG)
            if pid:
                self.poll.unregister(job.pidfd)
                os.close(job.pidfd)
                code = os.waitstatus_to_exitcode(status)
                self.finished(job, code if code >= 0 else 128 - code)
        for session in list(self.sessions.values()):
            self.drain(session)
            pid, _ = os.waitpid(session.pid, os.WNOHANG)
            if pid:
                self.poll.unregister(session.pidfd)
                os.close(session.pidfd)
                self.drain(session)
                self.close_terminal(session)
                session.log.close()
                del self.sessions[session.number]
                self.send({"left": session.number})

    def drain(self, session):
        while session.master >= 0:
            try:
                data = os.read(session.master, 65536)
            except BlockingIOError:
                return
            except OSError:
                # EIO: nobody has the terminal open, for good or for a moment (login reopens it). poll() would
                # spin on that; from here on the tick of serve() reads it.
                if session.polled:
                    self.poll.unregister(session.master)
                    session.polled = False
                return
            session.log.write(data)

    def serve(self):
        self.send({"hello": os.getpid()})
        while True:
            in_sessions = any(job.session is not None for job in self.jobs.values())
            for fd, _ in self.poll.poll(100 if self.sessions or in_sessions else None):
                if fd == self.port:
                    self.receive()
            self.look()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settle_down()
    Agent().serve()
