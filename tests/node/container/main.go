// Command container is what the pods of the node tests run: one static program, the only file
// of the one image that the laboratory makes (image.go), with a sub command per behaviour.
//
//	container pause                    runs until SIGTERM, which ends it at once, exit code 0
//	container obedient CODE SECONDS    takes SECONDS after SIGTERM, then leaves with CODE
//	container stubborn                 ignores SIGTERM
//	container exits CODE SECONDS       leaves by itself after SECONDS with CODE
//	container parent CODE SECONDS COMMAND...
//	                                   starts a child with COMMAND; leaves with CODE SECONDS after
//	                                   the child's end
//	container trainer INTERVAL STEP ANNOUNCED
//	                                   takes steps of STEP milliseconds and saves every INTERVAL
//	                                   of them, and each one after SIGUSR1; leaves with 143 at
//	                                   SIGTERM, and says how far it was (trainer.go)
//	container hog MEGABYTES PACE...    takes memory and keeps touching it
//	container fill DIRECTORY MEGABYTES PACE...
//	                                   writes a file and keeps it
//	container fork COUNT PACE...       starts processes that sleep, as many as it may
//	container image OUT.tar NAME...    writes the image that holds it, as a docker archive
//	container registry ADDRESS GATE    serves that image, once the file GATE exists
//	container record MILLISECONDS      says what the node and its pods use, time and again (record.go)
//
// PACE is PER_SECOND, how many megabytes or processes a second, and SECONDS to wait before; without
// it at once and as fast as can be.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func main() {
	name, args := "pause", []string{}
	if len(os.Args) > 1 {
		name, args = os.Args[1], os.Args[2:]
	}
	commands := map[string]func([]string) error{
		"pause":    func([]string) error { return obedient(0, 0) },
		"obedient": func(a []string) error { return obedient(number(a, 0), seconds(a, 1)) },
		"stubborn": func([]string) error { return stubborn() },
		"exits":    exits,
		"parent":   parent,
		"trainer":  func(a []string) error { return trainer(number(a, 0), number(a, 1), a[2]) },
		"hog":      func(a []string) error { return hog(number(a, 0), paceOf(a, 1)) },
		"fill":     func(a []string) error { return fill(a[0], number(a, 1), paceOf(a, 2)) },
		"fork":     func(a []string) error { return fork(number(a, 0), paceOf(a, 1)) },
		"image":    func(a []string) error { return writeArchive(a[0], a[1:]) },
		"registry": func(a []string) error { return serve(a[0], a[1]) },
		"record":   func(a []string) error { return record(number(a, 0)) },
	}
	run, known := commands[name]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown:", name)
		os.Exit(2)
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(args []string, index int) int {
	if index >= len(args) {
		return 0
	}
	value, err := strconv.Atoi(args[index])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return value
}

func seconds(args []string, index int) time.Duration {
	return time.Duration(number(args, index)) * time.Second
}

func obedient(code int, after time.Duration) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("up")
	fmt.Println(<-signals)
	time.Sleep(after)
	os.Exit(code)
	return nil
}

func stubborn() error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("up")
	for {
		time.Sleep(time.Hour)
	}
}

func exits(args []string) error {
	time.Sleep(seconds(args, 1))
	os.Exit(number(args, 0))
	return nil
}

func parent(args []string) error {
	child := exec.Command("/proc/self/exe", args[2:]...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	fmt.Println("child:", child.Run())
	time.Sleep(seconds(args, 1))
	os.Exit(number(args, 0))
	return nil
}

// pace is how fast something is taken; see above.
type pace struct {
	perSecond int
	wait      time.Duration
}

func paceOf(args []string, index int) pace {
	return pace{perSecond: number(args, index), wait: seconds(args, index+1)}
}

// each calls take count times, evenly; a pause that was too long is made up for. It ends when take
// says that nothing more can be had.
func (p pace) each(count int, take func(i int) bool) {
	time.Sleep(p.wait)
	begin := time.Now()
	for i := range count {
		if p.perSecond > 0 {
			due := begin.Add(time.Duration(i) * time.Second / time.Duration(p.perSecond))
			time.Sleep(time.Until(due))
		}
		if !take(i) {
			return
		}
	}
}

func hog(megabytes int, p pace) error {
	var held [][]byte
	p.each(megabytes, func(i int) bool {
		// Past Go's heap, which would look through it.
		block, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			fmt.Println("after", i, "MB:", err)
			return false
		}
		held = append(held, block)
		touch(held[i:])
		return true
	})
	fmt.Println("holds", len(held), "MB")
	for {
		touch(held)
		time.Sleep(time.Second)
	}
}

func touch(blocks [][]byte) {
	for _, block := range blocks {
		for i := 0; i < len(block); i += os.Getpagesize() {
			block[i]++
		}
	}
}

func fill(directory string, megabytes int, p pace) error {
	file, err := os.Create(filepath.Join(directory, "fill"))
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	p.each(megabytes, func(i int) bool {
		if _, err := file.Write(block); err != nil {
			fmt.Println("after", i, "MB:", err)
			return false
		}
		return true
	})
	fmt.Println("filled")
	return obedient(0, 0)
}

func fork(count int, p pace) error {
	p.each(count, func(i int) bool {
		if errno := forkSleeper(); errno != 0 {
			fmt.Println("after", i, "processes:", errno)
			return false
		}
		return true
	})
	fmt.Println("forked")
	return obedient(0, 0)
}

// forkSleeper starts a copy of this process that only waits for signals. One that began a program
// would hold so much memory that the node had none left before it had no process left.
//
//go:nosplit
//go:norace
func forkSleeper() syscall.Errno {
	// What the child does may need nothing of Go's runtime, whose other threads it has not.
	child, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if child == 0 {
		for {
			syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return 0
}
