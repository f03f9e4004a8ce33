package naming

func BroadcastSubject(tenant, event string) (string, error) { return tenant + event, nil }
