// Command kube-scheduler is upstream's. Its one sub command has its own name, as in the control
// plane's binary.
package main

import (
	"github.com/spf13/cobra"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"epilogue.dev/epilogue/tests/control-plane/program"
)

func main() {
	program.Run("kube-scheduler", map[string]func() *cobra.Command{
		"kube-scheduler": func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	})
}
