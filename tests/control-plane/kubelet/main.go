// Command kubelet is upstream's, for a real node in a virtual machine. Its one sub command has
// its own name, as in the control plane's binary.
package main

import (
	"context"

	"github.com/spf13/cobra"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"epilogue.dev/epilogue/tests/control-plane/program"
)

func main() {
	program.Run("kubelet", map[string]func() *cobra.Command{
		"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	})
}
