// crowd N: N sleeping children, as cheap as they come. They die with the parent; "ready" is printed when all are there.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long wanted = argc > 1 ? atol(argv[1]) : 0;
    for (long i = 0; i < wanted; i++) {
        pid_t child = fork();
        if (child < 0) {
            printf("only %ld\n", i);
            break;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    }
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}
