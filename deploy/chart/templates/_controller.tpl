{{/* The flags of the controller. Input: root, base (flags). Output: flags. */}}
{{- define "epilogue.controllerFlags" -}}
{{- $controller := .root.Values.controller -}}
{{- $flags := .base -}}
{{- if $controller.manageAllJobs -}}{{- $flags = append $flags "--manage-all-jobs" -}}{{- end -}}
{{- with $controller.namespace -}}{{- $flags = append $flags (print "--namespace=" .) -}}{{- end -}}
{{- if eq .root.Values.mode "observe" -}}
{{- $podGC := eq $controller.podGC "off" | ternary "off" "observe" -}}
{{- $flags = append $flags (print "--pod-gc=" $podGC) -}}
{{- if eq $podGC "off" -}}
{{- $idle := list "--stale-disruption-reset=off" "--node-shutdown-marks=false" -}}
{{- $flags = concat $flags $idle -}}
{{- end -}}
{{- else if ne $controller.podGC "alongside" -}}
{{- $flags = append $flags (print "--pod-gc=" $controller.podGC) -}}
{{- end -}}
{{- if .root.Values.scraping.enabled -}}
{{- $flags = append $flags "--scrape-bind-address=:9466" -}}
{{- end -}}
{{- dict "flags" (concat $flags $controller.extraArgs) | toYaml -}}
{{- end -}}

{{/* The Deployment. */}}
{{- define "epilogue.controller" -}}
{{- $text := include "epilogue.text" (dict "root" . "path" "base/controller/deployment.yaml") -}}
{{- $deployment := fromYaml $text -}}
{{- $pod := $deployment.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- include "epilogue.setPod" (dict "root" . "pod" $pod "settings" .Values.controller) -}}
{{- $_ := set $deployment.spec "replicas" .Values.controller.replicas -}}
{{- $input := dict "root" . "base" $container.args -}}
{{- $_ := set $container "args" (include "epilogue.controllerFlags" $input | fromYaml).flags -}}
{{- if .Values.scraping.enabled -}}
{{- $port := dict "name" "metrics" "containerPort" 9466 "protocol" "TCP" -}}
{{- $_ := set $container "ports" (append $container.ports $port) -}}
{{- end -}}
{{- include "epilogue.object" (dict "root" . "object" $deployment) -}}
{{- end -}}
