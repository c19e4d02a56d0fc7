// Who logs in, and whom it believes: from a file of the Java client's own properties.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

final class Login {
    static Map<String, Object> of(String file) throws IOException {
        Properties properties = new Properties();
        try (java.io.Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        }
        Map<String, Object> settings = new HashMap<>();
        for (String name : properties.stringPropertyNames()) settings.put(name, properties.getProperty(name));
        return settings;
    }
}
