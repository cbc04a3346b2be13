// Command kube-controller-manager is upstream's, for the tests that compare with it or need
// its controllers. Its one sub command has its own name, as in the control plane's binary.
package main

import (
	"github.com/spf13/cobra"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"epilogue.dev/epilogue/tests/control-plane/program"
)

func main() {
	program.Run("kube-controller-manager", map[string]func() *cobra.Command{
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	})
}
