// Command container is what the pods of the node tests run: one static program, the only file
// of the one image that the laboratory makes (image.go), with a sub command per behaviour.
//
//	container pause                    runs until SIGTERM, which ends it at once, exit code 0
//	container obedient CODE SECONDS    takes SECONDS after SIGTERM, then leaves with CODE
//	container stubborn                 ignores SIGTERM
//	container exits CODE SECONDS       leaves by itself after SECONDS with CODE
//	container hog MEGABYTES            takes memory, 8 MB at a time, and keeps touching it
//	container fill DIRECTORY MEGABYTES writes a file and keeps it
//	container fork COUNT               starts processes that sleep, as many as it may
//	container image OUT.tar NAME...    writes the image that holds it, as a docker archive
//	container registry ADDRESS GATE    serves that image, once the file GATE exists
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
		"hog":      func(a []string) error { return hog(number(a, 0)) },
		"fill":     func(a []string) error { return fill(a[0], number(a, 1)) },
		"fork":     func(a []string) error { return fork(number(a, 0)) },
		"image":    func(a []string) error { return writeArchive(a[0], a[1:]) },
		"registry": func(a []string) error { return serve(a[0], a[1]) },
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

func hog(megabytes int) error {
	var held [][]byte
	for len(held)*8 < megabytes {
		block := make([]byte, 8<<20)
		held = append(held, block)
		touch(held)
		fmt.Println("holds", len(held)*8, "MB")
	}
	for {
		touch(held)
		time.Sleep(100 * time.Millisecond)
	}
}

func touch(blocks [][]byte) {
	for _, block := range blocks {
		for i := 0; i < len(block); i += os.Getpagesize() {
			block[i]++
		}
	}
}

func fill(directory string, megabytes int) error {
	file, err := os.Create(filepath.Join(directory, "fill"))
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for i := range megabytes {
		if _, err := file.Write(block); err != nil {
			fmt.Println("after", i, "MB:", err)
			break
		}
	}
	fmt.Println("filled")
	return obedient(0, 0)
}

func fork(count int) error {
	for i := range count {
		if err := exec.Command("/proc/self/exe", "stubborn").Start(); err != nil {
			fmt.Println("after", i, "processes:", err)
			break
		}
	}
	fmt.Println("forked")
	return obedient(0, 0)
}
