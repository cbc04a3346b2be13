{{/*
The text of a manifest of the chart, with the values' namespaces and accounts. What the policies
match are the programs' own names in any namespace, and all accounts of the two namespaces.
Input: root, path.
*/}}
{{- define "epilogue.text" -}}
{{- $text := .root.Files.Get .path -}}
{{- if not (contains "apiVersion:" $text) -}}
{{- $remedy := "its symbolic links are lost; use a packaged chart" -}}
{{- fail (printf "the chart lacks the manifest %s: %s" .path $remedy) -}}
{{- end -}}
{{- $values := .root.Values -}}
{{- $names := $values.namespaces -}}
{{- $programs := list
      (list "epilogue-controller" "epilogue-system" $values.controller $names.controller)
      (list "epilogue-agent" "epilogue-agents" $values.agent $names.agents) -}}
{{- range $programs -}}
{{- $name := first . -}}
{{- $account := (index . 2).serviceAccount.name -}}
{{- $namespace := index . 3 -}}
{{- range $suffix := list "" "-observer" -}}
{{- $kind := "(kind: ServiceAccount|serviceAccount:)\n(metadata:\n)? +" -}}
{{- $of := printf "%sname: %s%s\n" $kind $name $suffix -}}
{{- range $found := regexFindAll $of $text -1 | uniq -}}
{{- $new := printf "name: %s\n" (print $account $suffix | quote) -}}
{{- $named := regexReplaceAll "name: .*\n" $found $new -}}
{{- $text = replace $found $named $text -}}
{{- end -}}
{{- end -}}
{{- $token := "create token " -}}
{{- $text = replace (print $token (first .) " ") (print $token $account " ") $text -}}
{{- $old := index . 1 -}}
{{- $text = replace (print "namespace: " $old "\n") (printf "namespace: %q\n" $namespace) $text -}}
{{- $list := printf "namespaces: [%q]" $namespace -}}
{{- $text = replace (printf "namespaces: [%s]" $old) $list $text -}}
{{- range list "serviceaccounts:" "--namespace " "-namespace=" -}}
{{- $text = replace (print . $old) (print . $namespace) $text -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* The labels of each object. */}}
{{- define "epilogue.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{/*
An object with the labels and annotations of all objects, as a document. Input: root, object.
*/}}
{{- define "epilogue.object" -}}
{{- $common := .root.Values.commonLabels -}}
{{- $labels := merge (include "epilogue.labels" .root | fromYaml) $common -}}
{{- $metadata := .object.metadata -}}
{{- $_ := set $metadata "labels" (merge $labels ($metadata.labels | default dict)) -}}
{{- with .root.Values.commonAnnotations -}}
{{- $_ := set $metadata "annotations" (merge (dict) ($metadata.annotations | default dict) .) -}}
{{- end }}
---
{{ toYaml .object }}
{{- end -}}

{{/* The objects of a text. Input: root, text, path for errors, and optionally names to print. */}}
{{- define "epilogue.objects" -}}
{{- range regexSplit "(?m)^---$" .text -1 -}}
{{- $object := fromYaml . -}}
{{- if $object.Error -}}{{- fail (printf "%s: %s" $.path $object.Error) -}}{{- end -}}
{{- if and $object (or (not $.names) (has $object.metadata.name $.names)) -}}
{{- include "epilogue.object" (dict "root" $.root "object" $object) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The objects of a manifest. Input: root, path, and optionally names to print. */}}
{{- define "epilogue.manifest" -}}
{{- $text := include "epilogue.text" . -}}
{{- include "epilogue.objects" (merge (dict "text" $text) .) -}}
{{- end -}}

{{/*
A namespace of the chart, unless it is the release's own, which is there before. Input: root, path,
name.
*/}}
{{- define "epilogue.namespace" -}}
{{- if and .root.Values.namespaces.create (ne .root.Release.Namespace .name) -}}
{{- $object := include "epilogue.text" . | fromYaml -}}
{{- $_ := set $object.metadata "name" .name -}}
{{- include "epilogue.object" (dict "root" .root "object" $object) -}}
{{- end -}}
{{- end -}}

{{/* The namespace of what is for both programs. */}}
{{- define "epilogue.mainNamespace" -}}
{{- .Values.controller.enabled | ternary .Values.namespaces.controller .Values.namespaces.agents -}}
{{- end -}}

{{/* The account of a program with its annotations. Input: root, path, settings. */}}
{{- define "epilogue.account" -}}
{{- $object := include "epilogue.text" . | fromYaml -}}
{{- with .settings.serviceAccount.annotations -}}
{{- $_ := set $object.metadata "annotations" . -}}
{{- end -}}
{{- include "epilogue.object" (dict "root" .root "object" $object) -}}
{{- end -}}

{{/* The image of both programs. */}}
{{- define "epilogue.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The labels of nodes that can run the image. */}}
{{- define "epilogue.nodeSelector" -}}
kubernetes.io/os: linux
{{- with .Values.image.architecture }}
kubernetes.io/arch: {{ . }}
{{- end }}
{{- end -}}

{{/*
Sets in a workload what both programs share. Input: root, workload, settings (of one program, with
its mode).
*/}}
{{- define "epilogue.setPod" -}}
{{- $template := .workload.spec.template -}}
{{- $pod := $template.spec -}}
{{- $values := .root.Values -}}
{{- $labels := merge (dict) $template.metadata.labels .settings.podLabels $values.commonLabels -}}
{{- $_ := set $template.metadata "labels" $labels -}}
{{- with merge (dict) .settings.podAnnotations $values.commonAnnotations -}}
{{- $_ := set $template.metadata "annotations" . -}}
{{- end -}}
{{- $container := index $pod.containers 0 -}}
{{- $_ := set $container "image" (include "epilogue.image" .root) -}}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy -}}
{{- $_ := set $container "resources" .settings.resources -}}
{{- $account := .settings.serviceAccount.name -}}
{{- if eq .settings.mode "observe" -}}
{{- $account = print $account "-observer" -}}
{{- range $container.env -}}
{{- if eq .name "EPILOGUE_MODE" -}}{{- $_ := set . "value" "observe" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with .settings.extraEnv -}}
{{- $_ := set $container "env" (concat ($container.env | default list) .) -}}
{{- end -}}
{{- $_ := set $pod "serviceAccountName" $account -}}
{{- $selector := include "epilogue.nodeSelector" .root | fromYaml -}}
{{- $_ := set $pod "nodeSelector" (merge (dict) .settings.nodeSelector $selector) -}}
{{- if .settings.priorityClassName -}}
{{- $_ := set $pod "priorityClassName" .settings.priorityClassName -}}
{{- else -}}
{{- $_ := unset $pod "priorityClassName" -}}
{{- end -}}
{{- $secrets := list -}}
{{- range $values.image.pullSecrets -}}
{{- $secrets = append $secrets (dict "name" .) -}}
{{- end -}}
{{- if $secrets -}}{{- $_ := set $pod "imagePullSecrets" $secrets -}}{{- end -}}
{{- end -}}

{{/* Fails for a flag that the chart sets. Input: field, flags, set (flag to the value to use). */}}
{{- define "epilogue.refuse" -}}
{{- range .flags -}}
{{- $flag := regexFind "[a-z][a-z-]*" . -}}
{{- if hasKey $.set $flag -}}
{{- $instead := get $.set $flag | default "nothing: the chart sets this flag" -}}
{{- fail (printf "%s: --%s: expected another flag; set %s" $.field $flag $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
