{{/* The text of a manifest of the chart. Input: root, path. */}}
{{- define "epilogue.text" -}}
{{- $text := .root.Files.Get .path -}}
{{- if not (contains "apiVersion:" $text) -}}
{{- $remedy := "its symbolic links are lost; use a packaged chart" -}}
{{- fail (printf "the chart lacks the manifest %s: %s" .path $remedy) -}}
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

{{/* An object with the labels, as a document. Input: root, object. */}}
{{- define "epilogue.object" -}}
{{- $labels := include "epilogue.labels" .root | fromYaml -}}
{{- $metadata := .object.metadata -}}
{{- $_ := set $metadata "labels" (merge $labels ($metadata.labels | default dict)) }}
---
{{ toYaml .object }}
{{- end -}}

{{/* The objects of a manifest. Input: root, path, and optionally names to print. */}}
{{- define "epilogue.manifest" -}}
{{- $root := .root -}}
{{- $path := .path -}}
{{- $names := .names -}}
{{- range regexSplit "(?m)^---$" (include "epilogue.text" .) -1 -}}
{{- $object := fromYaml . -}}
{{- if $object.Error -}}{{- fail (printf "%s: %s" $path $object.Error) -}}{{- end -}}
{{- if or (not $names) (has $object.metadata.name $names) -}}
{{- include "epilogue.object" (dict "root" $root "object" $object) -}}
{{- end -}}
{{- end -}}
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

{{/* Sets in a pod what both programs share. Input: root, pod, settings (of one program). */}}
{{- define "epilogue.setPod" -}}
{{- $container := index .pod.containers 0 -}}
{{- $_ := set $container "image" (include "epilogue.image" .root) -}}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy -}}
{{- $_ := set $container "resources" .settings.resources -}}
{{- if .settings.priorityClassName -}}
{{- $_ := set .pod "priorityClassName" .settings.priorityClassName -}}
{{- else -}}
{{- $_ := unset .pod "priorityClassName" -}}
{{- end -}}
{{- $secrets := list -}}
{{- range .root.Values.image.pullSecrets -}}
{{- $secrets = append $secrets (dict "name" .) -}}
{{- end -}}
{{- if $secrets -}}{{- $_ := set .pod "imagePullSecrets" $secrets -}}{{- end -}}
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
