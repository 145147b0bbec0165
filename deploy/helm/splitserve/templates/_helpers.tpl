{{- define "splitserve.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "splitserve.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "splitserve.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "splitserve.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "splitserve.image" -}}
{{- printf "%s:%s" .Values.image.repository .Values.image.tag -}}
{{- end -}}

{{- /* Kubernetes lets the group read what a secret holds, and secret keys that others can read are refused. */ -}}
{{- define "splitserve.copyKeys" -}}
- name: keys
  image: {{ include "splitserve.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: ["sh", "-c", "umask 077 && cp -L /secret/* /keys/"]
  securityContext:
    {{- include "splitserve.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: keys, mountPath: /keys}
{{- end -}}

{{- define "splitserve.secretName" -}}
{{- required "linkKeys.existingSecret: make one with `splitserve keys ./keys` and `kubectl create secret generic NAME --from-file=./keys`" .Values.linkKeys.existingSecret -}}
{{- end -}}

{{- define "splitserve.volumes" -}}
- name: keys
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- with .Values.model.volume }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "splitserve.mounts" -}}
- {name: keys, mountPath: /keys, readOnly: true}
- {name: run, mountPath: /run/splitserve}
- {name: tmp, mountPath: /tmp}
{{- if .Values.model.volume }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end -}}
