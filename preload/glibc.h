/* Binds what libtms.so and the simulator call in the C library to its oldest versions, so that both load with glibc 2.28
 * wherever they are built: newer glibcs have a second, newer version of the functions that they moved here from libdl and
 * libpthread, and of those that read numbers as C23 does. The compiler includes this file before all others, so it
 * includes none; runtime/cgo has assembly, too. scripts/build.sh links libdl.so.2 and libpthread.so.0, where an old
 * glibc has the functions. */
#ifndef __ASSEMBLER__
#ifdef __x86_64__
#define GLIBC_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define GLIBC_OLDEST "GLIBC_2.17"
#endif

#define GLIBC_AS(name, older) __asm__(".symver " #name "," #older "@" GLIBC_OLDEST)
#define GLIBC(name) GLIBC_AS(name, name)

GLIBC(dladdr);
GLIBC(dlclose);
GLIBC(dlerror);
GLIBC(dlopen);
#ifndef GLIBC_OWN_DLSYM
GLIBC(dlsym);
#endif
GLIBC(pthread_attr_getstack);
GLIBC(pthread_attr_getstacksize);
GLIBC(pthread_attr_setstack);
GLIBC(pthread_attr_setstacksize);
GLIBC(pthread_create);
GLIBC(pthread_detach);
GLIBC(pthread_getattr_np);
GLIBC(pthread_join);
GLIBC(pthread_key_create);
GLIBC(pthread_mutex_timedlock);
GLIBC(pthread_mutex_trylock);
GLIBC(pthread_mutexattr_destroy);
GLIBC(pthread_mutexattr_init);
GLIBC(pthread_mutexattr_settype);
GLIBC(pthread_once);
GLIBC(pthread_setspecific);
GLIBC(pthread_sigmask);
GLIBC(sem_destroy);
GLIBC(sem_init);
GLIBC(sem_post);
GLIBC(sem_timedwait);
GLIBC(sem_wait);
GLIBC_AS(__isoc23_sscanf, sscanf);
GLIBC_AS(__isoc23_strtol, strtol);
GLIBC_AS(__isoc23_strtoll, strtoll);
GLIBC_AS(__isoc23_strtoul, strtoul);
GLIBC_AS(__isoc23_strtoull, strtoull);
#endif
