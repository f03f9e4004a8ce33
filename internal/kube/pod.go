package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// nonRoot is the user of every image of ours; it owns nothing.
const nonRoot = 65532

// RestrictedPod is the security context of our pods: what the restricted Pod Security Standard asks for.
func RestrictedPod() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(nonRoot)), RunAsGroup: new(int64(nonRoot)), FSGroup: new(int64(nonRoot)),
		FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// RestrictedContainer is the security context of their containers.
func RestrictedContainer() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// SecretVolume mounts keys of a Secret, readable by the pod's group alone; without keys all of them. The kubelet keeps the
// files up to date, so a rotated secret reaches a process that reads its files again.
func SecretVolume(name, secret string, keys ...string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: secret, DefaultMode: new(int32(0o440)), Items: items(keys),
	}}}
}

// ConfigVolume mounts a ConfigMap.
func ConfigVolume(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, DefaultMode: new(int32(0o444)),
	}}}
}

func items(keys []string) []corev1.KeyToPath {
	var out []corev1.KeyToPath
	for _, key := range keys {
		out = append(out, corev1.KeyToPath{Key: key, Path: key})
	}
	return out
}

// Mount mounts a volume, read only.
func Mount(volume, path string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, MountPath: path, ReadOnly: true}
}

// Hash is a short hash of texts, for annotations of pod templates: a pod that reads its configuration once starts anew
// when it changes.
func Hash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Clone(texts), "\x00")))
	return hex.EncodeToString(sum[:8])
}
