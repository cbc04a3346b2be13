// Command kustomize renders kustomizations as `kubectl apply -k` does: for each directory that it
// is given, the objects as one line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	for _, directory := range os.Args[1:] {
		if err := render(directory); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", directory, err)
			os.Exit(1)
		}
	}
}

func render(directory string) error {
	builder := krusty.MakeKustomizer(krusty.MakeDefaultOptions())
	built, err := builder.Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return err
	}
	objects := make([]map[string]any, 0, built.Size())
	for _, resource := range built.Resources() {
		object, err := resource.Map()
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}
	return json.NewEncoder(os.Stdout).Encode(objects)
}
