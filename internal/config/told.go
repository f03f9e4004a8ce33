package config

// Told is all that a process of a deployment is told: its configuration, and the files of secrets that it names.
type Told struct {
	Config
	Databases   []Database
	CommandKeys []CommandKey
}

// LoadServer reads what a Server is told. The error names every field that is missing or unusable, and no secret.
func LoadServer(path string) (Told, error) { return loadTold(path, Config.ValidateServer) }

// LoadDelivery reads what a delivery worker is told, as LoadServer does.
func LoadDelivery(path string) (Told, error) { return loadTold(path, Config.ValidateDelivery) }

func loadTold(path string, validate func(Config) error) (t Told, err error) {
	if t.Config, err = Load(path); err != nil {
		return Told{}, err
	}
	if err = validate(t.Config); err != nil {
		return Told{}, err
	}
	if t.Databases, err = LoadDatabases(t.Store.DatabasesFile); err != nil {
		return Told{}, err
	}
	t.CommandKeys, err = LoadCommandKeys(t.Fabric.CommandKeysFile)
	return t, err
}
