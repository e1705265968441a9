/* Counts the instructions of a Python process under callgrind, by unit of source code: package, file or function.
 *
 * Loaded with LD_PRELOAD. `install` reads the units. In each phase, callgrind collects only while the innermost frame of
 * a listed unit is that phase's unit. To know it, this library replaces the interpreter's frame evaluation (PEP 523).
 * Frames that belong to no unit (standard library, generated code) count for the unit that calls them. In the phase
 * TOTAL, frame evaluation is not replaced and everything counts.
 *
 * If HEADGATE_COUNTER_THREADS is "all", other threads count in every phase; otherwise they never count.
 *
 * Callgrind makes a process about fifty times slower. While `clock_divisor` is above 1, all clocks advance more slowly
 * by this factor, and timeouts are longer, so that no periodic work falls into a phase.
 *
 * The measuring process writes phase and divisor to the file HEADGATE_COUNTER_CONTROL. Each line of the file
 * HEADGATE_COUNTER_UNITS is a number, a space and the beginning of PATH:QUALNAME;, with the path relative to the package.
 */
#define _GNU_SOURCE
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

/* Weak, because the library is also loaded into the shell script that starts valgrind. */
#pragma weak _PyEval_EvalFrameDefault

enum { OFF = 0, OUTSIDE = 1, TOTAL = 1000000, NOTHING = 1000001, UNITS_MAX = 20000 };

struct control {
    _Atomic int phase;
    _Atomic int clock_divisor;
    _Atomic int phase_seen; /* Written here, as is `used`. */
    unsigned char used[UNITS_MAX]; /* Whether code of each unit has run. */
};

static struct control *control;
static struct { char *beginning; int number; } units[UNITS_MAX];
static int unit_count;
static Py_ssize_t extra_slot;
static PyInterpreterState *interpreter;
static pid_t main_thread;
static int phase = OFF, current = OUTSIDE, collecting;

static void collect(int wanted) {
    if (wanted != collecting) {
        collecting = wanted;
        CALLGRIND_TOGGLE_COLLECT;
    }
}

static PyObject *evaluate(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing);

static void begin_phase(int next) {
    if (phase == OFF)
        CALLGRIND_START_INSTRUMENTATION;
    else {
        char name[32];
        snprintf(name, sizeof name, "phase %d", phase);
        collect(0);
        CALLGRIND_DUMP_STATS_AT(name);
    }
    phase = next;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, phase < TOTAL ? evaluate : _PyEval_EvalFrameDefault);
    collect(phase == TOTAL || phase == current);
    atomic_store(&control->phase_seen, phase);
}

/* Returns the number of the unit that the code belongs to, or 0. The last unit that matches wins. */
static int unit_of(PyCodeObject *code) {
    void *known = NULL;
    if (_PyCode_GetExtra((PyObject *)code, extra_slot, &known) == 0 && known != NULL)
        return (int)(intptr_t)known - 1;
    int number = 0;
    char place[1024] = "";
    const char *path = PyUnicode_AsUTF8(code->co_filename), *name = PyUnicode_AsUTF8(code->co_qualname);
    const char *found = path ? strstr(path, "/headgate/") : NULL;
    if (found && name)
        snprintf(place, sizeof place, "%s:%s;", found + strlen("/headgate/"), name);
    for (int each = 0; *place && each < unit_count; each++)
        if (!strncmp(place, units[each].beginning, strlen(units[each].beginning)))
            number = units[each].number;
    _PyCode_SetExtra((PyObject *)code, extra_slot, (void *)(intptr_t)(number + 1));
    control->used[number] = 1;
    return number;
}

static PyObject *evaluate(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing) {
    int unit = unit_of(frame->f_code);
    if (unit == 0 || unit == current || gettid() != main_thread)
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    int caller = current;
    current = unit;
    collect(unit == phase);
    PyObject *result = _PyEval_EvalFrameDefault(thread, frame, throwing);
    current = caller;
    collect(phase == TOTAL || caller == phase);
    return result;
}

static void no_cleanup(void *unused) { (void)unused; }

void install(void) {
    int file = open(getenv("HEADGATE_COUNTER_CONTROL"), O_RDWR);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    FILE *listed = fopen(getenv("HEADGATE_COUNTER_UNITS"), "r");
    while (unit_count < UNITS_MAX && fscanf(listed, "%d %ms", &units[unit_count].number, &units[unit_count].beginning) == 2)
        unit_count++;
    fclose(listed);
    extra_slot = _PyEval_RequestCodeExtraIndex(no_cleanup);
    interpreter = PyInterpreterState_Get();
    main_thread = gettid();
    collecting = !strcmp(getenv("HEADGATE_COUNTER_THREADS"), "all");
}

/* Clocks and timeouts */

enum { CLOCKS = 16 };
static struct timespec bases[CLOCKS]; /* Time at which each clock was slowed down. */

static int divisor(void) { return control ? atomic_load(&control->clock_divisor) : 1; }

static struct timespec shifted(struct timespec base, long long nanoseconds) {
    long long moved = base.tv_nsec + nanoseconds;
    return (struct timespec){base.tv_sec + moved / 1000000000LL, moved % 1000000000LL};
}

static long long between(struct timespec from, struct timespec to) {
    return (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status != 0 || !control || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        return status;
    if (divisor() > 1 && clock >= 0 && clock < CLOCKS) {
        if (bases[clock].tv_sec == 0)
            bases[clock] = *now;
        *now = shifted(bases[clock], between(bases[clock], *now) / divisor());
    }
    if (atomic_load(&control->phase) != phase && gettid() == main_thread)
        begin_phase(atomic_load(&control->phase));
    return status;
}

/* Returns the real time at which a slowed clock reaches `due`. Only the real-time clock counts from 1970. */
static struct timespec real_time(const struct timespec *due) {
    struct timespec base = bases[due->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC];
    if (divisor() == 1 || base.tv_sec == 0 || between(base, *due) < 0)
        return *due;
    return shifted(base, between(base, *due) * divisor());
}

#define ORIGINAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *due) {
    struct timespec real = real_time(due);
    return ORIGINAL(pthread_cond_timedwait)(condition, mutex, &real);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *due) {
    struct timespec real = real_time(due);
    return ORIGINAL(sem_clockwait)(semaphore, clock, &real);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *due, struct timespec *left) {
    struct timespec real = flags & TIMER_ABSTIME ? real_time(due) : *due;
    return ORIGINAL(clock_nanosleep)(clock, flags, &real, left);
}

static int longer(int timeout_ms) { return timeout_ms > 0 ? timeout_ms * divisor() : timeout_ms; }

int epoll_pwait(int fd, struct epoll_event *events, int count, int timeout_ms, const sigset_t *mask) {
    return (int)syscall(SYS_epoll_pwait, fd, events, count, longer(timeout_ms), mask, 8);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms) {
    return epoll_pwait(fd, events, count, timeout_ms, NULL);
}
