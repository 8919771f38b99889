/* The least that can stand between a job and what its output goes to: it reads and writes, and keeps nothing.
   relay terminal|pipe COMMAND…: what the job writes to. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pty.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static char data[1 << 20];

int main(int count, char **words) {
    int from, job, status, ends[2];
    if (count < 3)
        return 2;
    if (strcmp(words[1], "terminal") == 0) {
        struct termios mode, raw;
        if (tcgetattr(0, &mode))
            return 1;
        job = forkpty(&from, NULL, &mode, NULL);
        raw = mode;
        cfmakeraw(&raw);
        if (job > 0)
            tcsetattr(0, TCSANOW, &raw);
    } else {
        if (pipe(ends))
            return 1;
        fcntl(ends[1], F_SETPIPE_SZ, sizeof data);
        job = fork();
        if (job == 0)
            dup2(ends[1], 1), close(ends[0]);
        close(ends[1]);
        from = ends[0];
    }
    if (job < 0)
        return 1;
    if (job == 0) {
        execvp(words[2], words + 2);
        _exit(127);
    }
    for (ssize_t size; (size = read(from, data, sizeof data)) > 0;)
        for (ssize_t done = 0, written; done < size; done += written)
            if ((written = write(1, data + done, size - done)) < 0)
                return 1;
    waitpid(job, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
