// Package turns makes room on a device for a process that waits for memory: it decides which of the processes that
// share the device give way, and pauses them. A process runs for its turn before others take its memory.
//
// The nouns of the policy (policy.go), which knows neither clock nor operating system: a **device** has free memory,
// and a **reserve** that stays free if possible. A **process** holds memory by **tags**, each of which is paused as a
// whole; it may be **pinned**, so that it is never paused, or **busy**, so that it is not paused now. A process that
// waits has a **need**, in bytes, a **priority**, and the time that it has **waited**. A **swap** is a pause and the
// resume, and has a **price**, in time. A **turn** is as long as several swaps: it is the time for which a process
// works before others take its memory. A process is **due** when its turn is over, or when it has been **idle** for a
// **grace**. A process **grows** when it asks for more memory during its turn than it has had before. The **decision**
// for a process that waits is to go on, to wait, to pause **parts** of other processes, or that there is never enough.
// A **plan** is the decision as it would be if no other process waited. It chooses among **units**, which are tags with
// what their pause costs.
//
// The nouns of the **maker** (make.go), which makes room for one process: it looks at the processes as package fleet
// does (view.go), follows the decision under the **locks** of the devices (pause.go), and looks again. What it pauses
// is **yielded**: it is resumed under these locks, once a thread wants it. A pause has a **budget** of host memory for
// its contents. What the last of them gives away is **coming** (coming.go), so the process takes it part by part: a
// swap in both directions. A process that **refuses** to be paused counts as pinned. Waits puts a decision into words
// (explain.go).
//
// A process that waits comes before processes of lower priority. Among processes of the same priority, processes that
// grow during their turn come first, then the processes that have waited longest. Once it has waited as long as all
// others together may run, it counts as one of the highest priority. A process is paused only when its turn is over, or
// while it has no work or waits itself. So each wait has a bound: see turnsOf.
package turns
