// The image: one layer with this program in it, as an archive and as a registry's answers.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"time"
)

const program = "bin/container"

type object = map[string]any

// image gives the layer (an uncompressed tar) and the configuration.
func image() (layer, config []byte, err error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, nil, err
	}
	passwd := []byte("root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n")
	layer, err = archive([]file{
		{name: "bin/", mode: 0o755}, {name: "etc/", mode: 0o755}, {name: "tmp/", mode: 0o1777},
		{name: "etc/passwd", mode: 0o644, data: passwd},
		{name: program, mode: 0o755, data: self},
	})
	if err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(object{
		"architecture": "amd64", "os": "linux",
		"config":  object{"Entrypoint": []string{"/" + program}, "Env": []string{"PATH=/bin"}},
		"rootfs":  object{"type": "layers", "diff_ids": []string{digest(layer)}},
		"history": []object{{}},
	})
	return layer, config, err
}

func writeArchive(out string, names []string) error {
	layer, config, err := image()
	if err != nil {
		return err
	}
	configName := strings.TrimPrefix(digest(config), "sha256:") + ".json"
	manifest, err := json.Marshal([]object{
		{"Config": configName, "RepoTags": names, "Layers": []string{"layer.tar"}},
	})
	if err != nil {
		return err
	}
	data, err := archive([]file{
		{name: configName, mode: 0o644, data: config},
		{name: "layer.tar", mode: 0o644, data: layer},
		{name: "manifest.json", mode: 0o644, data: manifest},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(out, data, 0o644)
}

// serve answers every pull of any name with the image; each request waits for the file gate.
func serve(address, gate string) error {
	layer, config, err := image()
	if err != nil {
		return err
	}
	descriptor := func(kind string, data []byte) object {
		mediaType := "application/vnd.oci.image." + kind
		return object{"mediaType": mediaType, "digest": digest(data), "size": len(data)}
	}
	manifest, err := json.Marshal(object{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        descriptor("config.v1+json", config),
		"layers":        []object{descriptor("layer.v1.tar", layer)},
	})
	if err != nil {
		return err
	}
	blobs := map[string][]byte{digest(layer): layer, digest(config): config}
	handle := func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		for !exists(gate) {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
		data := manifest
		if strings.Contains(r.URL.Path, "/blobs/") {
			data = blobs[path.Base(r.URL.Path)]
		} else {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		w.Header().Set("Docker-Content-Digest", digest(data))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
	return http.ListenAndServe(address, http.HandlerFunc(handle))
}

type file struct {
	name string
	mode int64
	data []byte
}

func archive(files []file) ([]byte, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, file := range files {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(file.name, "/") {
			kind = tar.TypeDir
		}
		header := tar.Header{Typeflag: kind, Name: file.name, Mode: file.mode, Size: int64(len(file.data))}
		if err := writer.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(file.data); err != nil {
			return nil, err
		}
	}
	err := writer.Close()
	return buffer.Bytes(), err
}

func digest(data []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
