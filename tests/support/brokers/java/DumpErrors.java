import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints every error code of Kafka: code, name, retriable, stale metadata, classes. */
public class DumpErrors {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            Exception e = error.exception();
            StringBuilder classes = new StringBuilder();
            for (Class<?> c = e == null ? null : e.getClass(); c != null; c = c.getSuperclass())
                classes.append(c.getSimpleName()).append(' ');
            System.out.println(String.join("|", "" + error.code(), error.name(),
                "" + (e instanceof RetriableException), "" + (e instanceof InvalidMetadataException),
                classes.toString().trim()));
        }
    }
}
