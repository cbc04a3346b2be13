{{/* What the values turn off, and by which value. */}}
{{- define "epilogue.off" -}}
{{- $agent := .Values.agent -}}
{{- if not $agent.enabled }}
- Agents: agent.enabled is false. Nothing reports the pods of a node that shuts down.
{{- else if and (not $agent.leave) (eq .Values.mode "observe") }}
- Terminating pods at a shutdown, evictions, failing stuck pods: kubelets act as without Epilogue.
{{- else if not $agent.leave }}
{{- if ne $agent.pressure "enforce" }}
- Evictions: agent.pressure is {{ $agent.pressure }}.
{{- end }}
{{- if ne $agent.stuckPods "enforce" }}
- Failing stuck pods: agent.stuckPods is {{ $agent.stuckPods }}.
{{- end }}
{{- end }}
{{- if not .Values.controller.enabled }}
- The controller: controller.enabled is false. Jobs and pod GC stay with kube-controller-manager.
{{- else }}
{{- if eq .Values.mode "observe" }}
- Jobs: the controller runs none. Those that name it in spec.managedBy wait.
{{- else if not .Values.controller.manageAllJobs }}
- Jobs without spec.managedBy stay with kube-controller-manager: controller.manageAllJobs is false.
{{- end }}
{{- if eq .Values.mode "observe" }}
- Pod GC fails and deletes no pod: kube-controller-manager's acts alone.
{{- else if eq .Values.controller.podGC "off" }}
- Pod GC: controller.podGC is off; kube-controller-manager's acts alone.
{{- end }}
{{- end }}
{{- if not .Values.scraping.enabled }}
- Metrics over the network: scraping.enabled is false.
{{- end }}
{{- if not .Values.alerts.enabled }}
- Alerts: alerts.enabled is false.
{{- else if not .Values.scraping.enabled }}
- Alerts on both programs, because nothing can scrape them.
{{- end }}
{{- end -}}
