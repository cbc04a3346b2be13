// Package program runs one of several programs as sub commands of one binary.
package program

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	// What each Kubernetes program registers for itself: log formats and metrics.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// Run runs the sub command that the arguments name, and exits.
//
// With EXIT_WITH_STDIN=1 in the environment the process ends when its standard input is
// closed, so that it cannot outlive its parent, however that one ended.
func Run(name string, commands map[string]func() *cobra.Command) {
	if os.Getenv("EXIT_WITH_STDIN") == "1" {
		go exitWithStdin()
	}
	os.Exit(cli.Run(pick(name, commands)))
}

// pick chooses the sub command before cobra does: each Kubernetes program is a root command
// of its own, with global flags and a help text that a shared parent would mix up.
func pick(name string, commands map[string]func() *cobra.Command) *cobra.Command {
	if len(os.Args) > 1 {
		if build, known := commands[os.Args[1]]; known {
			command := build()
			command.SetArgs(os.Args[2:])
			os.Args = append([]string{os.Args[1]}, os.Args[2:]...)
			return command
		}
	}
	root := &cobra.Command{
		Use:          name,
		Short:        "programs of the laboratory, one per sub command",
		SilenceUsage: true,
	}
	for name := range commands {
		root.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return root
}

func exitWithStdin() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
